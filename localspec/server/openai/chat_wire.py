"""Requests for chat completions, and the fields that all OpenAI-like requests share."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field

from localspec import Engine
from localspec.prompting.content import marked
from localspec.prompting.prompt import Tokens
from localspec.server.answers import Ask
from localspec.server.conversation import Chat
from localspec.server.failures import ApiError
from localspec.server.openai.messages import (
    Content,
    FunctionTool,
    Message,
    messages_of,
    text_of,
    tools_of,
)
from localspec.server.service import Service
from localspec.server.tools import chosen
from localspec.server.wire import (
    MOST_CHOICES,
    BiasedSampling,
    Record,
    sampling_of,
    schema_of,
    stops_of,
)

_FORMS = "response_format, regex or grammar"
_REFUSED = {
    **dict.fromkeys(("guided_json", "guided_regex", "guided_choice", "guided_grammar"), _FORMS),
    "structured_outputs": _FORMS,
    "functions": "tools",
}


class Prediction(Record):
    type: Literal["content"] = "content"
    content: Content


class AnswerFields(BiasedSampling):
    model: str | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    stop: str | list[str] | None = None
    n: Annotated[int, Field(ge=1, le=MOST_CHOICES)] | None = None
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
    # Those of vLLM, and OpenAI's former tools: the answer would not be the one that is asked for.
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    structured_outputs: Any = None
    functions: Any = None

    @property
    def longest(self) -> int | None:
        given = (self.max_completion_tokens, self.max_tokens, self.n_predict)
        return next((value for value in given if value is not None), None)

    @property
    def wants_usage(self) -> bool:
        return bool((self.stream_options or {}).get("include_usage"))

    def ask(
        self,
        service: Service,
        engine: Engine,
        prompt: str | Tokens = "",
        *,
        choice: int = 0,
        logprobs: int | None = None,
    ) -> Ask:
        for name, instead in _REFUSED.items():
            if getattr(self, name) not in (None, [], {}):
                why = f"{name} is not known here. Use {instead}."
                raise ApiError(400, why, param=name)
        schema = None if self.json_schema is None else json.dumps(self.json_schema)
        return Ask(
            prompt=prompt,
            max_tokens=service.longest(self.longest),
            stop=stops_of(self.stop),
            sampling=sampling_of(self, service.defaults, engine, choice=choice),
            grammar=self.grammar if self.grammar and self.grammar.strip() else None,
            json_schema=schema_of(self.response_format, "response_format") or schema,
            regex=self.regex or None,
            logprobs=logprobs,
            prediction=text_of(self.prediction.content) if self.prediction else "",
            reuse=self.cache_prompt is not False,
            shift=service.shift(self.n_keep, self.n_discard),
            reports=bool(self.stream and self.return_progress),
        )


class RawFields(AnswerFields):
    """Fields of requests that continue a text, which may spell special tokens, as for llama.cpp."""

    parse_special: bool = True

    def as_prompt(self, text: str) -> str:
        return text if self.parse_special else marked(text)


class CountRequest(Record):
    model: str | None = None
    messages: Annotated[list[Message], Field(min_length=1)]
    tools: list[FunctionTool] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None

    def chat(self, service: Service, engine: Engine, *, images: bool = True) -> Chat:
        sees_images = images and engine.prompts.sees_images
        return Chat(
            messages=messages_of(self.messages, sees_images=sees_images),
            tools=chosen(tools_of(self.tools), "auto", several=False),
            variables=service.variables(self.chat_template_kwargs),
            begins=self.add_generation_prompt,
            goes_on=self.continue_final_message,
        )


class ChatRequest(CountRequest, AnswerFields):
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    verbose: bool | None = None
    speculation: bool | None = None
    reasoning_effort: str | None = None

    def asked(self, service: Service, engine: Engine) -> Chat:
        several = bool(self.parallel_tool_calls)
        logprobs = (self.top_logprobs or 0) if self.logprobs else None
        return replace(
            self.chat(service, engine),
            ask=self.ask(service, engine, logprobs=logprobs),
            tools=chosen(tools_of(self.tools), self.tool_choice, several=several),
            variables=service.variables(self.chat_template_kwargs, effort=self.reasoning_effort),
        )
