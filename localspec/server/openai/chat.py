"""`/v1/chat/completions`, and the fields that all OpenAI-like requests share."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AliasChoices, ConfigDict, Field

from localspec import Engine
from localspec.decoding.logprobs import TokenLogprob
from localspec.prompting.pieces import CallBegins, Piece, Text, Thought
from localspec.prompting.prompt import Tokens
from localspec.server.answer_figures import chat_logprobs, prompt_of, timings, usage
from localspec.server.answers import Answers, Ask, Part
from localspec.server.chat_prompt import Chat, begin, prompt_length
from localspec.server.failures import ApiError
from localspec.server.openai.messages import (
    Content,
    FunctionTool,
    Message,
    messages_of,
    text_of,
    tools_of,
)
from localspec.server.pieces import Call
from localspec.server.reply import Event, Reply
from localspec.server.service import FINGERPRINT, Service
from localspec.server.speculation import Speculation
from localspec.server.tools import chosen
from localspec.server.wire import (
    MOST_CHOICES,
    BiasedSampling,
    Record,
    sampling_of,
    schema_of,
    stops_of,
)

DONE = b"data: [DONE]\n\n"
_FORMS = "response_format, regex or grammar"
_REFUSED = {
    **dict.fromkeys(("guided_json", "guided_regex", "guided_choice", "guided_grammar"), _FORMS),
    "structured_outputs": _FORMS,
    "ebnf": "grammar",
    "functions": "tools",
    "stop_token_ids": "stop",
    "include_stop_str_in_output": "stop, and add it",
    **dict.fromkeys(("allowed_token_ids", "bad_words"), "logit_bias"),
    "min_tokens": "logit_bias or ignore_eos",
    **dict.fromkeys(("chat_template", "truncate_prompt_tokens"), "/v1/completions"),
    **dict.fromkeys(("documents", "image_data"), "messages"),
    "prompt_logprobs": "echo and logprobs of /v1/completions",
    "stop_regex": "stop",
}
"""Fields of vLLM and SGLang, and OpenAI's former tools, without which the answer would not be the
one that is asked for; and what to use."""
_OFF: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("mirostat", "mirostat_mode", "dry_multiplier", "xtc_probability"), ()),
    **dict.fromkeys(("dynatemp_range", "smoothing_factor", "top_a", "use_beam_search"), ()),
    **dict.fromkeys(("typical_p", "typical", "tfs", "tfs_z"), (1,)),
    **dict.fromkeys(("top_n_sigma", "adaptive_target"), (-1,)),
    "lora": (),
    "audio": (),
    "modalities": (["text"],),
}
"""Samplers and the like that localspec does not have; values that change nothing, besides 0."""


_COUNT = Field(ge=1, le=MOST_CHOICES, validation_alias=AliasChoices("n", "n_cmpl"))
"""llama.cpp has another name besides."""


class Prediction(Record):
    type: Literal["content"] = "content"
    content: Content


class AnswerFields(BiasedSampling):
    model_config = ConfigDict(extra="allow")

    model: str | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    stop: str | list[str] | None = None
    n: Annotated[int | None, _COUNT] = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n_predict: int | None = None
    grammar: str | None = None
    json_schema: dict[str, Any] | None = None
    regex: str | None = None
    response_format: dict[str, Any] | None = None
    prediction: Prediction | None = None
    timings_per_token: bool | None = None
    cache_prompt: bool | None = None
    return_progress: bool | None = None
    n_keep: int | None = None
    n_discard: int | None = None

    @property
    def longest(self) -> int | None:
        found: int | None = getattr(self, self.limit)
        return found

    @property
    def limit(self) -> str:
        """The name of the field that limits the answer."""
        names = ("max_completion_tokens", "n_predict")
        return next((name for name in names if getattr(self, name) is not None), "max_tokens")

    @property
    def silent(self) -> bool:
        """Whether only the prompt is read, into the cache: so does an answer of one token."""
        return False

    def ask(
        self,
        service: Service,
        engine: Engine,
        prompt: str | Tokens = "",
        *,
        logprobs: int | None = None,
    ) -> Ask:
        extra = self.model_extra or {}
        for name, instead in _REFUSED.items():
            if extra.get(name):
                why = f"{name} is not known here. Use {instead}."
                raise ApiError(400, why, param=name)
        for name, values in {**_OFF, "best_of": (1, self.n)}.items():
            if (value := extra.get(name)) and value not in values:
                raise ApiError(400, f"{name} is not supported. Leave it out.", param=name)
        schema = None if self.json_schema is None else json.dumps(self.json_schema)
        return Ask(
            prompt=prompt,
            max_tokens=1 if self.silent else service.longest(self.longest, self.limit),
            stop=stops_of(self.stop),
            sampling=sampling_of(self, service.defaults, engine),
            grammar=self.grammar if self.grammar and self.grammar.strip() else None,
            json_schema=schema_of(self.response_format, "response_format") or schema,
            regex=self.regex or None,
            logprobs=logprobs,
            prediction=text_of(self.prediction.content) if self.prediction else "",
            reuse=self.cache_prompt is not False,
            shift=service.shift(self.n_keep, self.n_discard),
            reports=bool(self.stream and self.return_progress),
        )


class CountRequest(Record):
    model: str | None = None
    messages: Annotated[list[Message], Field(min_length=1)]
    tools: list[FunctionTool] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None

    def chat(self, service: Service, engine: Engine) -> Chat:
        return Chat(
            messages=messages_of(self.messages, sees_images=engine.prompts.sees_images),
            tools=chosen(tools_of(self.tools), "auto", several=None),
            variables=service.variables(self.chat_template_kwargs),
            begins=self.add_generation_prompt,
            goes_on=self.continue_final_message,
        )


class ChatRequest(CountRequest, AnswerFields):
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    n_probs: Annotated[int, Field(ge=0, le=20)] | None = None  # llama.cpp's name of both
    verbose: bool | None = None
    speculation: bool | None = None
    reasoning_effort: str | None = None
    reasoning: dict[str, Any] | None = None  # OpenRouter's
    think: bool | str | None = None  # ollama's
    enable_thinking: bool | None = None  # of Qwen's provider
    thinking: dict[str, Any] | None = None  # of DeepSeek's, GLM's and Kimi's
    reasoning_format: str | None = None

    def chat(self, service: Service, engine: Engine) -> Chat:
        several = self.parallel_tool_calls
        logprobs = (self.top_logprobs or 0) if self.logprobs else self.n_probs or None
        reasoning, thinking = self.reasoning or {}, (self.thinking or {}).get("type")
        wishes = [self.reasoning_effort, reasoning.get("effort"), self.think, self.enable_thinking]
        wishes += [reasoning.get("enabled"), thinking and thinking != "disabled"]
        return replace(
            super().chat(service, engine),
            ask=self.ask(service, engine, logprobs=logprobs),
            tools=chosen(tools_of(self.tools), self.tool_choice, several=several),
            variables=service.variables(self.chat_template_kwargs, *wishes),
            apart=self.reasoning_format != "none",
        )


async def chat_completions(service: Service, wanted: ChatRequest) -> Reply:
    if wanted.top_logprobs and not wanted.logprobs:
        raise ApiError(400, "top_logprobs needs logprobs.", param="top_logprobs")
    return ChatReply(await begin(service, wanted.model, wanted.chat, wanted.n or 1), wanted)


async def input_tokens(service: Service, wanted: CountRequest) -> Any:
    length = await prompt_length(service, wanted.model, wanted.chat)
    return {"object": "response.input_tokens", "input_tokens": length}


class OpenaiReply(Reply):
    """`kind`: of its events; `id`: what its ids begin with."""

    last: ClassVar[bytes] = DONE

    def __init__(self, answers: Answers, wanted: AnswerFields, kind: str, id: str) -> None:
        super().__init__(answers, streamed=wanted.stream)
        self._usage_wanted = bool((wanted.stream_options or {}).get("include_usage"))
        self._head: Event = {
            "id": f"{id}-{secrets.token_hex(12)}",
            "object": kind,
            "created": int(time.time()),
            "model": answers.model,
            "system_fingerprint": FINGERPRINT,
        }

    def end(self) -> Iterable[Event]:
        if self._usage_wanted:
            figures = {"usage": self._usage(), "timings": timings(self.stream.stats)}
            yield {**self._head, "choices": [], **figures}

    def _event(self, choice: dict[str, Any], **more: Any) -> Event:
        nothing = {"usage": None} if self._usage_wanted else {}
        return {**self._head, "choices": [choice], **nothing, **more}

    def _usage(self) -> dict[str, Any]:
        return usage([stream.stats for stream in self.answers.streams])


class ChatReply(OpenaiReply):
    def __init__(self, answers: Answers, wanted: ChatRequest) -> None:
        super().__init__(answers, wanted, "chat.completion.chunk", "chatcmpl")
        self._wanted = wanted
        followed = answers.streams if wanted.speculation else []
        self._speculation = [Speculation(answers.engine, stream) for stream in followed]

    def begin(self) -> Iterable[Event]:
        for number in range(len(self.answers.streams)):
            yield self._chunk(number, {"role": "assistant", "content": ""})

    def events_of(self, part: Part) -> Iterable[Event]:
        number, stream = part.number, self.answers.streams[part.number]
        if part.reading is not None:
            yield self._chunk(number, {}, prompt_progress=part.reading)
        more: dict[str, Any] = {}
        if self._speculation and part.chunk is not None:
            more["speculation"] = self._speculation[number].step(part.chunk)
        logprobs = part.logprobs
        for piece in part.pieces or ([Text("")] if logprobs or more else []):
            message = self.answers.messages[number]
            message.add(piece)
            if self._wanted.timings_per_token:
                more["timings"] = timings(stream.stats)
            yield self._chunk(number, _delta(piece, message.calls), logprobs=logprobs, **more)
            logprobs, more = (), {}
        if part.complete:
            more = {"timings": timings(stream.stats)}
            if self._speculation:
                more["speculation"] = self._speculation[number].figures()
            yield self._chunk(number, {}, finish=self._finish(number), **more)

    def whole(self) -> Any:
        verbose = {"__verbose": {"prompt": prompt_of(self.stream, self.answers.engine)}}
        return {
            **self._head,
            "object": "chat.completion",
            "choices": [self._choice(number) for number in range(len(self.answers.streams))],
            "usage": self._usage(),
            "timings": timings(self.stream.stats),
            **(verbose if self._wanted.verbose else {}),
        }

    def _chunk(
        self,
        number: int,
        delta: dict[str, Any],
        *,
        finish: str | None = None,
        logprobs: Sequence[TokenLogprob] = (),
        **more: Any,
    ) -> Event:
        choice = {
            "index": number,
            "delta": delta,
            "logprobs": self._logprobs(logprobs) if logprobs else None,
            "finish_reason": finish,
        }
        return self._event(choice, **more)

    def _choice(self, number: int) -> dict[str, Any]:
        answer, wanted = self.answers.messages[number], self._wanted
        message: dict[str, Any] = {"role": "assistant", "content": answer.text, "refusal": None}
        if answer.thought:
            message["reasoning_content"] = answer.thought
        if answer.calls:
            message["tool_calls"] = [call.as_openai() for call in answer.calls]
            message["content"] = answer.text or None
        return {
            "index": number,
            "message": message,
            "logprobs": self._logprobs(answer.logprobs)
            if wanted.logprobs or wanted.n_probs
            else None,
            "finish_reason": self._finish(number),
        }

    def _logprobs(self, logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
        return {"content": chat_logprobs(logprobs, self.answers.engine), "refusal": None}

    def _finish(self, number: int) -> str:
        if self.answers.streams[number].finish_reason == "length":
            return "length"
        return "tool_calls" if self.calls(number) else "stop"

    def _usage(self) -> dict[str, Any]:
        found = super()._usage()
        thoughts = sum(map(self.answers.thought_tokens, range(len(self.answers.streams))))
        found["completion_tokens_details"]["reasoning_tokens"] = thoughts
        return found


def _delta(piece: Piece, calls: Sequence[Call]) -> dict[str, Any]:
    if isinstance(piece, Text):
        return {"content": piece.text}
    if isinstance(piece, Thought):
        return {"reasoning_content": piece.text}
    call: dict[str, Any] = {"index": len(calls) - 1}
    if isinstance(piece, CallBegins):
        call |= {"id": calls[-1].id, "type": "function"}
        call["function"] = {"name": piece.name, "arguments": ""}
    else:
        call["function"] = {"arguments": piece.text}
    return {"tool_calls": [call]}
