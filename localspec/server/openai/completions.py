"""`/v1/completions`: text goes on, without a template."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from typing import Annotated, Any

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from localspec import Chunk, Engine
from localspec.decoding.logprobs import TokenLogprob
from localspec.prompting.prompt import Tokens
from localspec.server.answer import Answers, Ask
from localspec.server.events import DONE, Streamed, as_json, event, while_there
from localspec.server.failures import ApiError, as_api_error, openai_body
from localspec.server.figures import TextOffsets, text_logprobs, timings, usage
from localspec.server.openai.chat_wire import RawFields, grammar_of, schema_of, text_of
from localspec.server.openai.echo import Echo, echo_of
from localspec.server.reading import Reading
from localspec.server.service import FINGERPRINT, Service
from localspec.server.wire import MOST_CHOICES, sampling_of, stops_of

Prompts = str | list[str] | list[int] | list[list[int]]


class CompletionRequest(RawFields):
    prompt: Prompts
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    echo: bool | None = None
    suffix: str | None = None

    @property
    def silent(self) -> bool:
        """Whether the prompt alone is wanted, for what the model thinks of it."""
        return bool(self.echo) and self.longest == 0


async def completions(service: Service, request: Request) -> ASGIApp:
    """Go on from texts."""
    wanted = await service.read(request, CompletionRequest)
    engine = await service.open(wanted.model)
    if wanted.suffix:
        raise ApiError(400, "suffix is not supported here. Use /infill.", param="suffix")
    schema = schema_of(wanted)
    prompts = [
        wanted.as_prompt(one) if isinstance(one, str) else one for one in prompts_of(wanted.prompt)
    ]
    each = wanted.n or 1
    if len(prompts) * each > MOST_CHOICES:
        raise ApiError(400, f"Ask for {MOST_CHOICES} answers at most.", param="prompt")
    asks = [
        Ask(
            prompt=prompt,
            max_tokens=1 if wanted.silent else service.longest(wanted.longest),
            stop=stops_of(wanted.stop),
            sampling=sampling_of(wanted, service.defaults, engine, choice=number),
            grammar=grammar_of(wanted),
            json_schema=schema,
            regex=wanted.regex or None,
            logprobs=wanted.logprobs,
            prediction=text_of(wanted.prediction.content) if wanted.prediction else "",
            reuse=wanted.cache_prompt is not False,
            shift=service.shift(wanted.n_keep, wanted.n_discard),
            reports=wanted.reports,
        )
        for prompt in prompts
        for number in range(each)
    ]
    echoes = [Echo()] * len(asks)
    if wanted.echo:
        told = [await echo_of(service, request, engine, one, wanted.logprobs) for one in prompts]
        echoes = [one for one in told for _ in range(each)]
    answers = await service.begin(engine, asks)
    reply = CompletionReply(engine, service.host.name, wanted, answers, echoes, each)
    if wanted.stream:
        return Streamed(reply.events(), answers.close)
    try:
        whole = await while_there(request.receive, reply.whole())
    finally:
        answers.close()
    return Response(as_json(whole), media_type="application/json")


def prompts_of(prompt: Prompts) -> list[str | Tokens]:
    """The prompts in any of the shapes that OpenAI allows.

    Raises:
        ApiError: there is none.
    """
    found: list[str | Tokens] = []
    if isinstance(prompt, str):
        found = [prompt]
    elif prompt and isinstance(prompt[0], int):
        found = [Tokens(token for token in prompt if isinstance(token, int))]
    else:
        for one in prompt:
            found.append(one if isinstance(one, str) else Tokens(_as_list(one)))
    if not found:
        raise ApiError(400, "The prompt is empty. Give some text to continue.", param="prompt")
    return found


def _as_list(prompt: int | str | list[int]) -> list[int]:
    return prompt if isinstance(prompt, list) else []


class CompletionReply:
    """The answers to a request, in OpenAI's words; `each` for every prompt."""

    def __init__(
        self,
        engine: Engine,
        model: str,
        wanted: CompletionRequest,
        answers: Answers,
        echoes: Sequence[Echo],
        each: int,
    ) -> None:
        self._engine = engine
        self._wanted = wanted
        self._answers = answers
        self._each = each
        self._echoes = echoes
        self._texts = [echo.text for echo in echoes]
        self._told: list[list[TokenLogprob]] = [[] for _ in echoes]
        self._offsets = [TextOffsets(engine, len(echo.text)) for echo in echoes]
        self._head = {
            "id": f"cmpl-{secrets.token_hex(12)}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": FINGERPRINT,
        }

    async def whole(self) -> dict[str, Any]:
        """The reply, once all is said."""
        async for number, chunk in self._answers.chunks():
            if isinstance(chunk, Chunk) and not self._wanted.silent:
                self._texts[number] += chunk.text
                if chunk.step is not None:
                    self._told[number].extend(chunk.step.logprobs)
        choices = []
        for number, (text, echo) in enumerate(zip(self._texts, self._echoes, strict=True)):
            choice = self._choice(number, text, self._told[number], complete=True)
            choices.append(_behind(echo, choice))
        return {
            **self._head,
            "choices": choices,
            "usage": self._usage(),
            "timings": timings(self._answers.streams[0].stats),
        }

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The reply as events, while it is said."""
        try:
            for number, text in enumerate(self._texts):
                if text:
                    choice = self._choice(number, text, (), complete=False)
                    yield self._event(_behind(self._echoes[number], choice))
            async for number, chunk in self._answers.chunks():
                if chunk is None:
                    choice = self._choice(number, "", (), complete=True)
                    figures = timings(self._answers.streams[number].stats)
                    yield self._event(choice, timings=figures)
                    continue
                if isinstance(chunk, Reading):
                    choice = self._choice(number, "", (), complete=False)
                    yield self._event(choice, prompt_progress=chunk.as_llama_cpp())
                    continue
                told = chunk.step.logprobs if chunk.step is not None else ()
                if (chunk.text or told) and not self._wanted.silent:
                    yield self._event(self._choice(number, chunk.text, told, complete=False))
            if self._wanted.stream_options and self._wanted.stream_options.include_usage:
                yield event({**self._head, "choices": [], "usage": self._usage()})
            yield DONE
        except Exception as error:
            yield event(openai_body(as_api_error(error)))

    def _event(self, choice: dict[str, Any], **more: Any) -> bytes:
        return event({**self._head, "choices": [choice], **more})

    def _choice(
        self,
        number: int,
        text: str,
        told: Sequence[TokenLogprob],
        *,
        complete: bool,
    ) -> dict[str, Any]:
        wants = self._wanted.logprobs is not None
        reason = self._answers.streams[number].finish_reason if complete else None
        reason = "length" if reason and self._wanted.silent else reason
        if self._echoes[number].logprobs is None:
            # Behind a prompt's tokens all are told: who asks how likely a text is takes off one
            # that was said (lm-evaluation-harness).
            ends = self._engine.model.vocabulary.ends
            told = [one for one in told if not ends(one.token)]
        return {
            "index": number,
            "text": text,
            "logprobs": text_logprobs(told, self._engine, self._offsets[number]) if wants else None,
            "finish_reason": "stop" if reason == "cancelled" else reason,
        }

    def _usage(self) -> dict[str, Any]:
        streams = self._answers.streams
        found = usage([stream.stats for stream in streams])
        found["prompt_tokens"] = sum(s.stats.prompt_tokens for s in streams[:: self._each])
        if self._wanted.silent:
            found["completion_tokens"] = 0
        found["total_tokens"] = found["prompt_tokens"] + found["completion_tokens"]
        return found


def _behind(echo: Echo, choice: dict[str, Any]) -> dict[str, Any]:
    """A choice whose text has that of the prompt already, and its log-probabilities not yet."""
    if echo.logprobs is None:
        return choice
    told = choice["logprobs"]
    return choice | {"logprobs": {name: echo.logprobs[name] + told[name] for name in told}}
