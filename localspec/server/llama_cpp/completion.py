"""llama.cpp's `/completion`, which continues a text, and `/infill`, between two texts."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field

from localspec import Engine
from localspec.decoding.logprobs import TokenLogprob
from localspec.prompting.prompt import Tokens
from localspec.server.answer_figures import TextOffsets, chat_logprobs, text_of_tokens, timings
from localspec.server.answers import Answer, AnswerPart, Answers
from localspec.server.infill import infill_prompt
from localspec.server.llama_cpp.tokenize import settings_of
from localspec.server.openai.completions import Prompts, RawFields
from localspec.server.reply import Event, Reply
from localspec.server.service import Service
from localspec.server.wire import Record


class Completion(RawFields):
    """`t_max_predict_ms`: a time limit, after which the answer ends with its first line;
    `n_indent`: white space that every further line has to begin with, or the answer ends."""

    biased_texts = True
    prompt: Prompts = ""
    n_probs: Annotated[int, Field(ge=0, le=1000)] | None = None
    post_sampling_probs: bool | None = None
    return_tokens: bool | None = None
    response_fields: list[str] | None = None
    t_max_predict_ms: Annotated[float, Field(allow_inf_nan=False)] | None = None
    n_indent: Annotated[int, Field(le=1000)] | None = None


async def completion(service: Service, wanted: Completion) -> Reply:
    engine = await service.open(wanted.model)
    prompts = wanted.prompts(wanted.prompt, engine)
    requests = wanted.requests(service, engine, prompts, silent=wanted.limit[1] == 0)
    logprobs, sampled = wanted.n_probs or None, bool(wanted.post_sampling_probs)
    asked = [ask.with_options(logprobs=logprobs, as_sampled=sampled) for ask in requests]
    return CompletionReply(await service.begin(engine, *asked), wanted)


class CompletionReply(Reply):
    def __init__(self, answers: Answers, wanted: Completion) -> None:
        super().__init__(answers, streamed=wanted.stream)
        self._wanted = wanted

    def events_of(self, part: AnswerPart) -> Iterable[Event]:
        answer, chunk = part.answer, part.chunk
        if part.complete:
            yield self._final(answer)
        elif part.progress is not None:
            yield {**self._part(answer), "prompt_progress": part.progress}
        elif chunk is not None or part.logprobs:
            excess = len(answer.text) - self._end(answer)
            said, tokens = (chunk.text, chunk.token_ids) if chunk else ("", ())
            text = said[: max(0, len(said) - excess)]
            found = self._part(answer, text, tokens)
            if part.logprobs:
                found["completion_probabilities"] = self._probabilities(part.logprobs)
            if self._wanted.timings_per_token:
                found["timings"] = timings(answer.stream.stats)
            if text or not excess:
                yield found
            most = self._wanted.t_max_predict_ms or 0.0
            late = 0 < most < answer.stream.stats.decode_seconds * 1e3
            if excess or (late and "\n" in answer.text):
                answer.stream.cancel()

    def _end(self, answer: Answer) -> int:
        """The length of an answer up to its first line with too little white space."""
        least = self._wanted.n_indent or 0
        line = rf"\n[ \t]{{0,{least - 1}}}(?=[^ \t])"
        found = re.search(line, answer.text) if least > 0 else None
        return len(answer.text) if found is None else found.end()

    def whole(self) -> Any:
        found = [self._final(answer) for answer in self.answers]
        return found[0] if len(found) == 1 else found

    def _part(self, answer: Answer, text: str = "", tokens: Sequence[int] = ()) -> dict[str, Any]:
        return {
            "index": answer.number,
            "content": text,
            "tokens": list(tokens),
            "stop": False,
            "id_slot": answer.slot,
            "tokens_predicted": len(answer.tokens),
            "tokens_evaluated": answer.stream.stats.prompt_tokens,
        }

    def _probabilities(self, logprobs: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
        return chat_logprobs(logprobs, self.engine, sampled=bool(self._wanted.post_sampling_probs))

    def _final(self, answer: Answer) -> Event:
        stream, ask, wanted = answer.stream, answer.ask, self._wanted
        stats = stream.stats
        kind = "eos" if stream.finish_reason == "stop" else "limit"
        kind = kind if stream.stopped is None else "word"
        text, tokens = answer.text[: self._end(answer)], answer.tokens
        if len(text) < len(answer.text):
            starts = TextOffsets(self.engine).of(tokens)
            kind, tokens = "limit", tokens[: sum(start <= len(text) for start in starts)]
        longest = 0 if ask.silent else ask.options["max_tokens"] or -1
        found: dict[str, Any] = {
            "index": answer.number,
            "content": "" if self.streamed else text,
            "tokens": tokens if wanted.return_tokens and not self.streamed else [],
            "id_slot": answer.slot,
            "stop": True,
            "model": self.model,
            "tokens_predicted": 0 if ask.silent else len(tokens),
            "tokens_evaluated": stats.prompt_tokens,
            "generation_settings": {
                **settings_of(ask.sampling),
                "seed": stats.seed,
                "n_keep": wanted.n_keep or 0,
                "n_discard": wanted.n_discard or 0,
                "n_predict": longest,
                "max_tokens": longest,
                "stop": list(ask.options["stop"] or ()),
                "stream": self.streamed,
                "n_probs": wanted.n_probs or 0,
                "post_sampling_probs": bool(wanted.post_sampling_probs),
                "grammar": ask.options["grammar"] or "",
                "ignore_eos": bool(wanted.ignore_eos),
                "timings_per_token": bool(wanted.timings_per_token),
            },
            "prompt": text_of_tokens(stream.prompt, self.engine),
            "has_new_line": "\n" in text,
            "truncated": stream.truncated,
            "stop_type": kind,
            "stopping_word": (stream.stopped or "") if kind == "word" else "",
            "tokens_cached": len(stream.context) - 1,
            "timings": timings(stats),
        }
        if answer.logprobs and not self.streamed:
            found["completion_probabilities"] = self._probabilities(answer.logprobs[: len(tokens)])
        return _pick_fields(found, wanted.response_fields)


def _pick_fields(found: dict[str, Any], fields: Sequence[str] | None) -> dict[str, Any]:
    picked: dict[str, Any] = {}
    for path in fields or ():
        value: Any = found
        for name in path.split("/"):
            if not isinstance(value, Mapping) or name not in value:
                break
            value = value[name]
        else:
            picked[path] = value
    return picked if fields else found


class Extra(Record):
    text: str
    filename: str = "tmp"


class Infill(Completion):
    input_prefix: str = ""
    input_suffix: str = ""
    input_extra: tuple[Extra, ...] | list[Extra] = ()
    prompt: str = ""

    def prompts(self, given: Any, engine: Engine) -> list[str | Tokens]:
        others = [(one.filename, one.text) for one in self.input_extra]
        prefix, suffix = self.input_prefix, self.input_suffix
        return [
            infill_prompt(
                engine, prefix, suffix, limit=self.limit[1], begun=self.prompt, files=others
            )
        ]


async def infill(service: Service, wanted: Infill) -> Reply:
    return await completion(service, wanted)
