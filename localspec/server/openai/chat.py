"""`/v1/chat/completions`, and the fields that all OpenAI-like requests share."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import AliasChoices, ConfigDict, Field

from localspec import Chunk, Drafting, Engine
from localspec.decoding.logprobs import TokenLogprob
from localspec.decoding.session import ContextShift
from localspec.keywords import AnswerKeywords
from localspec.prompting.prompt import Tokens
from localspec.prompting.reasoning import CallBegins, Piece, Text, Thought
from localspec.server.answer_figures import Speculation, chat_logprobs, text_of_tokens
from localspec.server.answers import Answer, AnswerPart, Answers, Call, StreamRequest
from localspec.server.chat_prompt import Chat, request_of
from localspec.server.failures import ApiError
from localspec.server.openai.messages import (
    Content,
    FunctionTool,
    Message,
    messages_of,
    text_of,
    tools_of,
)
from localspec.server.reply import Event, Reply
from localspec.server.service import FINGERPRINT, Service
from localspec.server.tools import resolve_choice
from localspec.server.wire import (
    MOST_CHOICES,
    Object,
    Record,
    Sampling,
    schema_of,
    stops_of,
)

if TYPE_CHECKING:
    from typing_extensions import Self  # in the standard library since 3.11

_COUNT = Field(ge=1, le=MOST_CHOICES, validation_alias=AliasChoices("n", "n_cmpl"))
"""`n_cmpl` is llama.cpp's name."""


class Prediction(Record):
    type: Literal["content"] = "content"
    content: Content


class AnswerFields(Sampling):
    model: str | None = None
    stream: bool | None = None
    stream_options: Object | None = None
    stop: str | list[str] | None = None
    n: Annotated[int | None, _COUNT] = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    max_output_tokens: int | None = None
    n_predict: int | None = None
    json_schema: Object | None = None
    response_format: Object | None = None
    prediction: Prediction | None = None
    timings_per_token: bool | None = None
    cache_prompt: bool | None = None
    return_progress: bool | None = None
    return_token_ids: bool | None = None  # vLLM's
    n_keep: int | None = None
    n_discard: int | None = None

    @property
    def limit(self) -> tuple[str, int | None]:
        """The field that limits the answer, and its value."""
        for name in ("max_completion_tokens", "max_output_tokens", "n_predict"):
            if (value := getattr(self, name)) is not None:
                return name, value
        return "max_tokens", self.max_tokens

    def ask(
        self, service: Service, engine: Engine, prompt: str | Tokens = "", *, silent: bool = False
    ) -> StreamRequest:
        """Build the engine's request; `silent` is that of `StreamRequest`, for which one token is
        generated."""
        extra = self.model_extra or {}
        self.refuse_others({"best_of": (1, self.n)})
        name, longest = self.limit
        if longest == 0 and not silent:
            raise ApiError(400, f"{name} is 0. Give 1 or more.", param=name)
        if longest is None or longest < 0:
            longest = service.options.max_tokens
        schema = schema_of(self.response_format, "response_format")
        shift = ContextShift(max(-1, self.n_keep or 0), max(0, self.n_discard or 0))
        options = AnswerKeywords(
            max_tokens=1 if silent else longest and min(longest, 1 << 30),
            stop=stops_of(self.stop),
            sampling=self.sampling(service.defaults, engine),
            grammar=self.grammar if self.grammar and self.grammar.strip() else None,
            json_schema=self.json_schema if schema is None else schema,
            regex=self.regex or None,
            prediction=text_of(self.prediction.content) if self.prediction else "",
            reuse=self.cache_prompt is not False,
            shift=shift if service.options.context_shift else None,
            drafting=Drafting(drafter="none") if extra.get("speculative.n_max") == 0 else None,
        )
        reports = bool(self.stream and self.return_progress)
        return StreamRequest(prompt=prompt, options=options, silent=silent, reports=reports)


class Thinking(Record):
    """Whether to think and how much, in the fields of all chat protocols."""

    model_config = ConfigDict(extra="allow")

    chat_template_kwargs: Object | None = None
    reasoning_effort: str | None = None
    reasoning: Object | None = None  # OpenRouter's
    think: bool | str | None = None  # ollama's
    enable_thinking: bool | None = None  # of Qwen's provider
    thinking: Object | None = None  # Anthropic's, DeepSeek's, GLM's and Kimi's
    thinking_budget: int | None = None  # of Qwen's provider
    thinking_budget_tokens: int | None = None  # llama.cpp's, as is the next
    reasoning_budget_tokens: int | None = None
    thinking_token_budget: int | None = None  # vLLM's


class CountRequest(Thinking):
    """A conversation to be answered; the other chat protocols convert theirs to it."""

    model: str | None = None
    messages: Annotated[list[Message], Field(min_length=1)]
    tools: list[FunctionTool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | Literal["reasoning_content", "content"] | None = None
    reasoning_format: str | None = None
    separate_reasoning: bool | None = None  # SGLang's

    @classmethod
    def of(cls, *others: Record, **more: Any) -> Self:
        """Convert requests of another protocol, by fields of the same name and `more`."""
        same = dict[str, Any]()
        for one in others:
            known = {*type(one).model_fields} & {*cls.model_fields} | AnswerFields.others
            same |= {name: value for name, value in one if name in known}
            if (one.model_extra or {}).get("n", 1) != 1:
                raise ApiError(400, "n is not supported here. Leave it out.", param="n")
        return cls(**same | more)

    def chat(self, service: Service, engine: Engine) -> Chat:
        tools = tools_of(self.tools)
        return Chat(
            messages=messages_of(self.messages, sees_images=engine.prompts.sees_images),
            tools=resolve_choice(tools, self.tool_choice, several=self.parallel_tool_calls),
            variables=self.variables(service.options.thinking),
            begins=self.add_generation_prompt,
            continues=self.continue_final_message,
            splits_thoughts=self.reasoning_format != "none"
            and self.separate_reasoning is not False,
        )

    def variables(self, thinks: bool) -> dict[str, Any]:
        """Variables for the template: the request's, and whether to think, under the names of all
        families. Names other than enable_thinking are set only on request, as models that use them
        have different defaults."""
        reasoning, thinking = self.reasoning or {}, (self.thinking or {}).get("type")
        kept = (self.thinking or {}).get("keep") == "all"  # Kimi's; GLM's is the other
        kept = kept or (self.thinking or {}).get("clear_thinking") is False
        options = [self.reasoning_effort, reasoning.get("effort"), self.think, self.enable_thinking]
        options += [reasoning.get("enabled"), thinking and thinking != "disabled"]
        effort = next((one for one in options if one and isinstance(one, str)), None)
        enabled = next((one for one in options if isinstance(one, bool)), None)
        budgets = [self.thinking_budget, self.thinking_budget_tokens, self.thinking_token_budget]
        budgets += [self.reasoning_budget_tokens]
        budgets += [(self.thinking or {}).get("budget_tokens"), reasoning.get("max_tokens")]
        budget = next((one for one in budgets if isinstance(one, int) and one >= 0), None)
        if enabled is None and effort:
            enabled = effort != "none"
        if budget == 0:
            enabled = False
        words = {"true": True, "false": False}
        given = {
            name: words.get(one, one) if isinstance(one, str) else one
            for name, one in (self.chat_template_kwargs or {}).items()
        }
        found = {"enable_thinking": thinks if enabled is None else enabled, **given}
        if effort and effort != "none":
            found = {"reasoning_effort": effort, "reasoning_strength": effort, **found}
        if enabled is not None or "enable_thinking" in given or not thinks:
            thinks = bool(found["enable_thinking"])
            budget = budget if thinks else 0
            found = {"thinking": thinks, "reasoning": thinks, **found}
        if budget is not None:
            found.setdefault("thinking_budget", budget)
        if kept:
            found = {"clear_thinking": False, "preserve_thinking": True, **found}
        return found


class ChatRequest(CountRequest, AnswerFields):
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    n_probs: Annotated[int, Field(ge=0, le=1000)] | None = None  # llama.cpp's name for both
    verbose: bool | None = None
    speculation: bool | None = None
    include_reasoning: bool | None = None  # vLLM's

    def ask(self, service: Service, engine: Engine, *given: Any, **more: Any) -> StreamRequest:
        logprobs = (self.top_logprobs or 0) if self.logprobs else self.n_probs or None
        return super().ask(service, engine, *given, **more).with_options(logprobs=logprobs)

    def chat(self, service: Service, engine: Engine) -> Chat:
        return replace(super().chat(service, engine), ask=self.ask(service, engine))


async def prepared(service: Service, engine: Engine, wanted: CountRequest) -> StreamRequest:
    """Build the engine's request. Long ones would delay other clients in the event loop."""
    return await asyncio.to_thread(lambda: request_of(engine, wanted.chat(service, engine)))


async def begin(service: Service, wanted: ChatRequest) -> Answers:
    engine = await service.open(wanted.model)
    ask = await prepared(service, engine, wanted)
    return await service.begin(engine, *map(ask.nth, range(wanted.n or 1)))


async def prompt_length(service: Service, wanted: CountRequest) -> int:
    engine = await service.open(wanted.model)
    return len((await prepared(service, engine, wanted)).prompt)


async def chat_completions(service: Service, wanted: ChatRequest) -> Reply:
    if wanted.top_logprobs and not wanted.logprobs:
        raise ApiError(400, "top_logprobs needs logprobs.", param="top_logprobs")
    return ChatReply(await begin(service, wanted), wanted)


async def input_tokens(service: Service, wanted: CountRequest) -> Any:
    length = await prompt_length(service, wanted)
    return {"object": "response.input_tokens", "input_tokens": length}


class OpenaiReply(Reply):
    """A reply in OpenAI's format. `kind`: its events' object type; `id`: the prefix of its ids."""

    last: ClassVar[bytes] = b"data: [DONE]\n\n"

    def __init__(self, answers: Answers, wanted: AnswerFields, kind: str, id: str) -> None:
        super().__init__(answers, streamed=wanted.stream)
        self._n, self._ids_wanted = wanted.n or 1, bool(wanted.return_token_ids)
        options = wanted.stream_options or {}
        self._usage_wanted = bool(options.get("include_usage"))
        self._usage_always = bool(options.get("continuous_usage_stats"))  # vLLM's
        self._head: Event = {
            "id": f"{id}-{secrets.token_hex(12)}",
            "object": kind,
            "created": int(time.time()),
            "model": answers.model,
            "system_fingerprint": FINGERPRINT,
        }

    def end(self) -> Iterable[Event]:
        if self._usage_wanted:
            yield self._with_figures([])

    def _prompt_ids(self, answer: Answer) -> dict[str, Any]:
        return {"prompt_token_ids": [*answer.stream.prompt]} if self._ids_wanted else {}

    def _token_ids(self, said: Chunk | Answer | None) -> dict[str, Any]:
        """The token ids of a chunk or an answer, if they are wanted."""
        tokens = said.tokens if isinstance(said, Answer) else said.token_ids if said else ()
        return {"token_ids": [*tokens]} if self._ids_wanted else {}

    def _event(self, choice: dict[str, Any], **more: Any) -> Event:
        usage = self._usage() if self._usage_always else None
        figures = {"usage": usage} if self._usage_wanted else {}
        return {**self._head, "choices": [choice], **figures, **more}

    def _with_figures(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        figures = {"usage": self._usage(), "timings": self.answer.timings}
        return {**self._head, "choices": choices, **figures}

    def _usage(self) -> dict[str, Any]:
        prompts = [answer.stream.stats for answer in self.answers[:: self._n]]
        answers = [answer.stream.stats for answer in self.answers if not answer.ask.silent]
        prompt = sum(stats.prompt_tokens for stats in prompts)
        generated = sum(stats.generated_tokens for stats in answers)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": generated,
            "total_tokens": prompt + generated,
            "prompt_tokens_details": {"cached_tokens": sum(one.cached_tokens for one in prompts)},
            "completion_tokens_details": {  # drafts count as predictions
                "accepted_prediction_tokens": sum(stats.accepted for stats in answers),
                "rejected_prediction_tokens": sum(s.tested - s.accepted for s in answers),
            },
        }


class ChatReply(OpenaiReply):
    def __init__(self, answers: Answers, wanted: ChatRequest) -> None:
        super().__init__(answers, wanted, "chat.completion.chunk", "chatcmpl")
        self._wanted, self._has_logprobs = wanted, bool(wanted.logprobs or wanted.n_probs)
        excluded = (wanted.reasoning or {}).get("exclude")
        self._hides_thoughts = bool(excluded) or wanted.include_reasoning is False
        followed = self.answers if wanted.speculation else []
        self._speculation = [Speculation(self.engine, answer.stream) for answer in followed]

    def begin(self) -> Iterable[Event]:
        for answer in self.answers:
            content = None if self._wanted.tools else ""  # else clients begin a text before a call
            delta = {"role": "assistant", "content": content}
            yield self._chunk(AnswerPart(answer), delta, **self._prompt_ids(answer))

    def events_of(self, part: AnswerPart) -> Iterable[Event]:
        answer, delta, more = part.answer, dict[str, Any](), dict[str, Any]()
        hidden = isinstance(part.piece, Thought) and self._hides_thoughts
        piece = None if hidden else part.piece
        if part.progress is not None:
            more["prompt_progress"] = part.progress
        if self._speculation and part.chunk is not None:
            more["speculation"] = self._speculation[answer.number].step(part.chunk)
        ids = self._ids_wanted and part.chunk is not None
        if piece is not None or part.logprobs or ids or "speculation" in more:
            delta = _delta(piece or Text(""), answer.calls)
            if self._wanted.timings_per_token:
                more["timings"] = answer.timings
        if part.complete:
            more["timings"] = answer.timings
            if self._speculation:
                more["speculation"] = self._speculation[answer.number].figures()
        if delta or more:
            yield self._chunk(part, delta, **more)

    def whole(self) -> Any:
        verbose = {"__verbose": {"prompt": text_of_tokens(self.answer.stream.prompt, self.engine)}}
        return {
            **self._with_figures([self._choice(answer) for answer in self.answers]),
            **self._prompt_ids(self.answer),
            "object": "chat.completion",
            **(verbose if self._wanted.verbose else {}),
        }

    def _chunk(self, part: AnswerPart, delta: dict[str, Any], **more: Any) -> Event:
        choice = {
            "index": part.answer.number,
            "delta": delta,
            "logprobs": self._logprobs(part.logprobs) if part.logprobs else None,
            "finish_reason": self._finish(part.answer) if part.complete else None,
            **self._token_ids(part.chunk),
        }
        return self._event(choice, **more)

    def _choice(self, answer: Answer) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": answer.text, "refusal": None}
        if answer.thought and not self._hides_thoughts:
            message["reasoning_content"] = answer.thought
        if answer.calls:
            message["tool_calls"] = [call.as_openai() for call in answer.calls]
            message["content"] = answer.text or None
        return {
            "index": answer.number,
            "message": message,
            "logprobs": self._logprobs(answer.logprobs) if self._has_logprobs else None,
            "finish_reason": self._finish(answer),
            **self._token_ids(answer),
        }

    def _logprobs(self, logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
        return {"content": chat_logprobs(logprobs, self.engine), "refusal": None}

    def _finish(self, answer: Answer) -> str:
        if answer.stream.finish_reason == "length":
            return "length"
        return "tool_calls" if answer.called else "stop"

    def _with_figures(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        found = super()._with_figures(choices)
        thoughts = sum(map(self.thought_tokens, self.answers))  # too slow for each event
        found["usage"]["completion_tokens_details"]["reasoning_tokens"] = thoughts
        return found


def _delta(piece: Piece, calls: Sequence[Call]) -> dict[str, Any]:
    if isinstance(piece, Text):
        return {"content": piece.text}
    if isinstance(piece, Thought):
        return {"reasoning_content": piece.text}
    call, last = dict[str, Any](index=len(calls) - 1), calls[-1]
    kind, said = ("custom", "input") if last.custom else ("function", "arguments")
    if isinstance(piece, CallBegins):
        call |= {"id": last.id, "type": kind, kind: {"name": piece.name, said: ""}}
    else:
        call[kind] = {said: piece.text}
    return {"tool_calls": [call]}
