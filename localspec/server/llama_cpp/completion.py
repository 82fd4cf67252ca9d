"""`/completion`, llama.cpp's own way to continue a text, and `/infill`, between two texts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field

from localspec import Engine
from localspec.decoding.logprobs import TokenLogprob
from localspec.prompting.prompt import Tokens
from localspec.server.answer_figures import chat_logprobs, prompt_of, sampled_probs, timings
from localspec.server.answers import Answers, Ask, Part
from localspec.server.failures import ApiError
from localspec.server.llama_cpp.tokenize import settings_of
from localspec.server.openai.completions import Prompts, RawFields
from localspec.server.reply import Event, Reply
from localspec.server.service import Service
from localspec.server.wire import MOST_CHOICES, Record

_LONGEST = 128
"""Tokens of the answer that room is left for, where the request sets no limit."""


class Completion(RawFields):
    """`t_max_predict_ms` is an editor's patience: a longer answer ends after its first line."""

    biased_texts = True
    prompt: Prompts = ""
    n_probs: Annotated[int, Field(ge=0, le=100)] | None = None
    post_sampling_probs: bool | None = None
    return_tokens: bool | None = None
    response_fields: list[str] | None = None
    t_max_predict_ms: Annotated[float, Field(allow_inf_nan=False)] | None = None


async def completion(service: Service, wanted: Completion) -> Reply:
    engine = await service.open(wanted.model)
    each = range(wanted.n or 1)
    prompts = [one for one in wanted.prompts(wanted.prompt, engine) for _ in each]
    if not 0 < len(prompts) <= MOST_CHOICES:
        raise ApiError(400, f"Give 1 to {MOST_CHOICES} prompts.", param="prompt")
    asks = [
        replace(
            wanted.ask(service, engine, prompt, logprobs=wanted.n_probs or None).nth(number),
            as_sampled=bool(wanted.post_sampling_probs),
        )
        for number, prompt in enumerate(prompts)
    ]
    return CompletionReply(await service.begin(engine, *asks), wanted, asks)


class CompletionReply(Reply):
    def __init__(self, answers: Answers, wanted: Completion, asks: Sequence[Ask]) -> None:
        super().__init__(answers, streamed=wanted.stream)
        self._wanted = wanted
        self._asks = asks
        self._tokens: list[list[int]] = [[] for _ in asks]

    def events_of(self, part: Part) -> Iterable[Event]:
        number, chunk = part.number, part.chunk
        if part.complete:
            yield self._final(number)
        elif part.reading is not None:
            yield {**self._part(part), "prompt_progress": part.reading}
        elif chunk is not None and not self._wanted.silent:
            yield from super().events_of(part)
            self._tokens[number] += chunk.token_ids
            found = self._part(part)
            if part.logprobs:
                found["completion_probabilities"] = self._probabilities(part.logprobs)
            if self._wanted.timings_per_token:
                found["timings"] = timings(self.answers.streams[number].stats)
            if chunk.text or chunk.token_ids:
                yield found
            self._end_if_late(number)

    def whole(self) -> Any:
        found = [self._final(number) for number in range(len(self._asks))]
        return found[0] if len(found) == 1 else found

    def _part(self, part: Part) -> dict[str, Any]:
        return {
            "index": part.number,
            "content": "" if part.chunk is None else part.chunk.text,
            "tokens": [] if part.chunk is None else list(part.chunk.token_ids),
            "stop": False,
            "id_slot": 0,
            "tokens_predicted": len(self._tokens[part.number]),
            "tokens_evaluated": self.answers.streams[part.number].stats.prompt_tokens,
        }

    def _probabilities(self, logprobs: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
        form = sampled_probs if self._wanted.post_sampling_probs else chat_logprobs
        return form(logprobs, self.answers.engine)

    def _end_if_late(self, number: int) -> None:
        most, stream = self._wanted.t_max_predict_ms or 0.0, self.answers.streams[number]
        begun = most > 0 and "\n" in self.answers.messages[number].text
        if begun and stream.stats.decode_seconds * 1e3 > most:
            stream.cancel()

    def _final(self, number: int) -> Event:
        stream, ask, wanted = self.answers.streams[number], self._asks[number], self._wanted
        stats, message = stream.stats, self.answers.messages[number]
        kind = "eos" if stream.finish_reason == "stop" else "limit"
        if stream.stopped is not None:
            kind = "word"
        keeps = wanted.return_tokens and not self.streamed
        longest = 0 if self._wanted.silent else ask.max_tokens or -1
        found: dict[str, Any] = {
            "index": number,
            "content": "" if self.streamed else message.text,
            "tokens": self._tokens[number] if keeps else [],
            "id_slot": 0,
            "stop": True,
            "model": self.answers.model,
            "tokens_predicted": 0 if self._wanted.silent else stats.generated_tokens,
            "tokens_evaluated": stats.prompt_tokens,
            "generation_settings": {
                **settings_of(ask.sampling),
                "seed": stats.seed,
                "n_keep": wanted.n_keep or 0,
                "n_discard": wanted.n_discard or 0,
                "n_predict": longest,
                "max_tokens": longest,
                "stop": list(ask.stop),
                "stream": self.streamed,
                "n_probs": wanted.n_probs or 0,
                "post_sampling_probs": bool(wanted.post_sampling_probs),
                "grammar": ask.grammar or "",
                "ignore_eos": bool(wanted.ignore_eos),
                "timings_per_token": bool(wanted.timings_per_token),
            },
            "prompt": prompt_of(stream, self.answers.engine),
            "has_new_line": "\n" in message.text,
            "truncated": stream.truncated,
            "stop_type": kind,
            "stopping_word": stream.stopped or "",
            "tokens_cached": stats.prompt_tokens + stats.generated_tokens - 1,
            "timings": timings(stats),
        }
        if message.logprobs and not self.streamed and not self._wanted.silent:
            found["completion_probabilities"] = self._probabilities(message.logprobs)
        return _picked(found, wanted.response_fields)


def _picked(found: dict[str, Any], fields: Sequence[str] | None) -> dict[str, Any]:
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
        return [_between(self, engine)]


async def infill(service: Service, wanted: Infill) -> Reply:
    return await completion(service, wanted)


def _between(wanted: Infill, engine: Engine) -> Tokens:
    """Prefix and suffix between the model's own tokens for that, other files before them. Of a text
    that is too long the part nearest to the gap is kept, three quarters prefix, one suffix."""
    vocabulary = engine.model.vocabulary
    marks = vocabulary.filling()
    if not {"pre", "suf", "mid"} <= marks.keys():
        raise ApiError(
            501,
            "This model has no tokens for filling in the middle. Use a code model that has, or "
            "/completion.",
        )

    def tokens(text: str) -> list[int]:
        return vocabulary.tokenize(text, special=False, add_bos=False)

    answer = wanted.longest if wanted.longest and wanted.longest > 0 else _LONGEST
    room = max(16, engine.context_length - min(answer, engine.context_length // 2) - 8)
    prefix, suffix = tokens(wanted.input_prefix), tokens(wanted.input_suffix)
    begun = tokens(wanted.prompt)[-room // 4 :]
    suffix = suffix[: max(0, room // 4 - len(begun))]
    prefix = prefix[max(0, len(prefix) - (room * 3 // 4)) :] + begun
    others: list[int] = []
    for extra in wanted.input_extra:
        if "sep" in marks:
            others += [marks["sep"], *tokens(f"{extra.filename}\n")]
        else:
            others += tokens("\n\n--- snippet ---\n\n")
        others += tokens(extra.text)
    if others and "rep" in marks:
        others = [marks["rep"], *tokens("myproject\n"), *others]
    if others and "sep" in marks:
        others += [marks["sep"], *tokens("filename\n")]
    left = room - len(prefix) - len(suffix)
    others = others[max(0, len(others) - left) :] if left > 0 else []
    start = [vocabulary.bos] if vocabulary.adds_bos and vocabulary.bos >= 0 else []
    filled = [marks["pre"], *prefix, marks["suf"], *suffix, marks["mid"]]
    return Tokens([*start, *others, *filled])
