"""`/completion`: llama.cpp's own way to go on from a text."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field
from starlette.requests import Request
from starlette.types import ASGIApp

from localspec import Chunk, Engine
from localspec.decoding.logprobs import TokenLogprob
from localspec.prompting.prompt import Tokens
from localspec.server.answer import Answers, Ask
from localspec.server.events import Streamed, event, while_there
from localspec.server.failures import ApiError, as_api_error, openai_body
from localspec.server.figures import chat_logprobs, sampled_probs, timings
from localspec.server.llama_cpp.texts import prompt_of, reply, settings_of
from localspec.server.openai.chat_wire import RawFields, grammar_of, schema_of
from localspec.server.reading import Reading
from localspec.server.service import Service
from localspec.server.wire import MOST_CHOICES, Record, sampling_of, stops_of

Mixed = list[int | str]
"""Token ids, and texts between them."""


class PromptObject(Record):
    prompt_string: str
    multimodal_data: list[str] | str | None = None


Prompts = str | PromptObject | Mixed | list[str | Mixed | PromptObject]


class Completion(RawFields):
    biased_texts = True
    prompt: Prompts = ""
    n_probs: Annotated[int, Field(ge=0, le=100)] | None = None
    post_sampling_probs: bool | None = None
    return_tokens: bool | None = None
    response_fields: list[str] | None = None
    t_max_predict_ms: Annotated[float, Field(allow_inf_nan=False)] | None = None
    """Editors' patience: past the first line, an answer that took longer ends."""


async def completion(service: Service, request: Request) -> ASGIApp:
    """Go on from one text, or several."""
    wanted = await service.read(request, Completion)
    engine = await service.open(wanted.model)
    prompts = [_prompt(one, engine, wanted) for one in _each(wanted.prompt)]
    return await written(service, request, engine, wanted, prompts)


async def written(
    service: Service,
    request: Request,
    engine: Engine,
    wanted: Completion,
    prompts: Sequence[str | Tokens],
) -> ASGIApp:
    """The reply for prompts."""
    if not 0 < len(prompts) <= MOST_CHOICES:
        raise ApiError(400, f"Give 1 to {MOST_CHOICES} prompts.", param="prompt")
    schema = schema_of(wanted)
    # A length of 0 reads the prompt, for the sake of the cache; one token does as well.
    nothing = wanted.longest == 0
    asks = [
        Ask(
            prompt=prompt,
            max_tokens=1 if nothing else service.longest(wanted.longest),
            stop=stops_of(wanted.stop),
            sampling=sampling_of(wanted, service.defaults, engine, choice=number),
            grammar=grammar_of(wanted),
            json_schema=schema,
            regex=wanted.regex or None,
            logprobs=wanted.n_probs or None,
            as_sampled=bool(wanted.post_sampling_probs),
            reuse=wanted.cache_prompt is not False,
            shift=service.shift(wanted.n_keep, wanted.n_discard),
            reports=wanted.reports,
        )
        for number, prompt in enumerate(prompts)
    ]
    answers = await service.begin(engine, asks)
    result = CompletionReply(engine, service.host.name, wanted, asks, answers)
    if wanted.stream:
        return Streamed(result.events(), answers.close)
    try:
        whole = await while_there(request.receive, result.whole())
    finally:
        answers.close()
    return reply(whole[0] if len(whole) == 1 else whole)


def _each(prompt: Prompts) -> Sequence[str | PromptObject | Mixed]:
    if isinstance(prompt, (str, PromptObject)):
        return [prompt]
    if any(isinstance(part, int) for part in prompt):
        return [[part for part in prompt if isinstance(part, (int, str))]]
    return [part for part in prompt if not isinstance(part, int)]


def _prompt(prompt: str | PromptObject | Mixed, engine: Engine, wanted: RawFields) -> str | Tokens:
    if isinstance(prompt, PromptObject):
        if prompt.multimodal_data:
            raise ApiError(400, "The model reads text only. Leave multimodal_data out.")
        return wanted.as_prompt(prompt.prompt_string)
    if isinstance(prompt, str):
        return wanted.as_prompt(prompt)
    tokens: list[int] = []
    for part in prompt:
        if isinstance(part, int):
            tokens.append(part)
        else:
            special = wanted.parse_special
            vocabulary = engine.model.vocabulary
            tokens += vocabulary.tokenize(part, special=special, add_bos=False)
    return Tokens(tokens)


class CompletionReply:
    """The answers to a request, in llama.cpp's words."""

    def __init__(
        self,
        engine: Engine,
        model: str,
        wanted: Completion,
        asks: Sequence[Ask],
        answers: Answers,
    ) -> None:
        self._engine = engine
        self._model = model
        self._wanted = wanted
        self._asks = asks
        self._answers = answers
        self._silent = wanted.longest == 0
        self._texts = [""] * len(asks)
        self._tokens: list[list[int]] = [[] for _ in asks]
        self._told: list[list[TokenLogprob]] = [[] for _ in asks]

    async def whole(self) -> list[dict[str, Any]]:
        """All of them, once they are said."""
        async for number, chunk in self._answers.chunks():
            if isinstance(chunk, Chunk) and not self._silent:
                self._texts[number] += chunk.text
                self._tokens[number] += chunk.token_ids
                self._end_if_late(number)
                if chunk.step is not None:
                    self._told[number] += chunk.step.logprobs
        return [self._final(number, streamed=False) for number in range(len(self._asks))]

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The same as events, while they are said."""
        try:
            async for number, chunk in self._answers.chunks():
                if chunk is None:
                    yield event(self._final(number, streamed=True))
                elif isinstance(chunk, Reading):
                    progress = {"prompt_progress": chunk.as_llama_cpp()}
                    yield event({**self._part(number), **progress})
                elif not self._silent:
                    self._texts[number] += chunk.text
                    self._tokens[number] += chunk.token_ids
                    part = self._part(number, chunk)
                    if chunk.step is not None and chunk.step.logprobs:
                        part["completion_probabilities"] = self._probabilities(chunk.step.logprobs)
                    if self._wanted.timings_per_token:
                        part["timings"] = timings(self._answers.streams[number].stats)
                    if chunk.text or chunk.token_ids:
                        yield event(part)
                    self._end_if_late(number)
        except Exception as error:
            yield event(openai_body(as_api_error(error)))

    def _part(self, number: int, chunk: Chunk | None = None) -> dict[str, Any]:
        """An event of an answer that goes on."""
        return {
            "index": number,
            "content": "" if chunk is None else chunk.text,
            "tokens": [] if chunk is None else list(chunk.token_ids),
            "stop": False,
            "id_slot": 0,
            "tokens_predicted": len(self._tokens[number]),
            "tokens_evaluated": self._answers.streams[number].stats.prompt_tokens,
        }

    def _probabilities(self, told: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
        shape = sampled_probs if self._wanted.post_sampling_probs else chat_logprobs
        return shape(told, self._engine)

    def _end_if_late(self, number: int) -> None:
        most, stream = self._wanted.t_max_predict_ms, self._answers.streams[number]
        begun = most is not None and most > 0 and "\n" in self._texts[number]
        if begun and stream.stats.decode_seconds * 1e3 > (most or 0.0):
            stream.cancel()

    def _final(self, number: int, *, streamed: bool) -> dict[str, Any]:
        stream = self._answers.streams[number]
        stats, ask = stream.stats, self._asks[number]
        kind = "eos" if stream.finish_reason == "stop" else "limit"
        if stream.stopped is not None:
            kind = "word"
        keeps = self._wanted.return_tokens and not streamed
        longest = 0 if self._silent else ask.max_tokens or -1
        found: dict[str, Any] = {
            "index": number,
            "content": "" if streamed else self._texts[number],
            "tokens": self._tokens[number] if keeps else [],
            "id_slot": 0,
            "stop": True,
            "model": self._model,
            "tokens_predicted": 0 if self._silent else stats.generated_tokens,
            "tokens_evaluated": stats.prompt_tokens,
            "generation_settings": {
                **settings_of(ask.sampling),
                "seed": stats.seed,
                "n_keep": self._wanted.n_keep or 0,
                "n_discard": self._wanted.n_discard or 0,
                "n_predict": longest,
                "max_tokens": longest,
                "stop": list(ask.stop),
                "stream": streamed,
                "n_probs": self._wanted.n_probs or 0,
                "post_sampling_probs": bool(self._wanted.post_sampling_probs),
                "grammar": ask.grammar or "",
                "ignore_eos": bool(self._wanted.ignore_eos),
                "timings_per_token": bool(self._wanted.timings_per_token),
            },
            "prompt": prompt_of(stream, self._engine),
            "has_new_line": "\n" in self._texts[number],
            "truncated": stream.truncated,
            "stop_type": kind,
            "stopping_word": stream.stopped or "",
            "tokens_cached": stats.prompt_tokens + stats.generated_tokens - 1,
            "timings": timings(stats),
        }
        if self._told[number]:
            found["completion_probabilities"] = self._probabilities(self._told[number])
        return _picked(found, self._wanted.response_fields)


def _picked(found: dict[str, Any], fields: Sequence[str] | None) -> dict[str, Any]:
    """Only these members, under the names they are asked by: "a/b" is member b of member a."""
    if not fields:
        return found
    picked: dict[str, Any] = {}
    for path in fields:
        value: Any = found
        for name in path.split("/"):
            if not isinstance(value, Mapping) or name not in value:
                break
            value = value[name]
        else:
            picked[path] = value
    return picked
