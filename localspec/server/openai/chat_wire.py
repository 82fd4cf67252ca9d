"""Requests for chat completions, and the fields that all OpenAI-like requests share."""

from __future__ import annotations

import json
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
from localspec.server.wire import MOST_CHOICES, BiasedSampling, Record, sampling_of, stops_of

_GUIDED = ("guided_json", "guided_regex", "guided_choice", "guided_grammar")


class SchemaFormat(Record):
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None


class ResponseFormat(Record):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: SchemaFormat | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None


class StreamOptions(Record):
    include_usage: bool | None = None


class Prediction(Record):
    type: Literal["content"] = "content"
    content: Content


class AnswerFields(BiasedSampling):
    """Fields that chat completions and completions have in common."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: str | list[str] | None = None
    n: Annotated[int, Field(ge=1, le=MOST_CHOICES)] | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n_predict: int | None = None
    grammar: str | None = None
    json_schema: dict[str, Any] | None = None
    regex: str | None = None
    response_format: ResponseFormat | None = None
    prediction: Prediction | None = None
    timings_per_token: bool | None = None
    cache_prompt: bool | None = None
    return_progress: bool | None = None
    n_keep: int | None = None
    n_discard: int | None = None
    # vLLM's, refused: the answer would not be the one that is asked for.
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    structured_outputs: Any = None

    @property
    def longest(self) -> int | None:
        given = (self.max_completion_tokens, self.max_tokens, self.n_predict)
        return next((value for value in given if value is not None), None)

    @property
    def wants_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    def ask(
        self,
        service: Service,
        engine: Engine,
        prompt: str | Tokens = "",
        *,
        choice: int = 0,
        logprobs: int | None = None,
    ) -> Ask:
        for name in (*_GUIDED, "structured_outputs"):
            if getattr(self, name) is not None:
                why = f"{name} is not known here. Use response_format, regex or grammar."
                raise ApiError(400, why, param=name)
        return Ask(
            prompt=prompt,
            max_tokens=service.longest(self.longest),
            stop=stops_of(self.stop),
            sampling=sampling_of(self, service.defaults, engine, choice=choice),
            grammar=self.grammar if self.grammar and self.grammar.strip() else None,
            json_schema=self._schema(),
            regex=self.regex or None,
            logprobs=logprobs,
            prediction=text_of(self.prediction.content) if self.prediction else "",
            reuse=self.cache_prompt is not False,
            shift=service.shift(self.n_keep, self.n_discard),
            reports=bool(self.stream and self.return_progress),
        )

    def _schema(self) -> str | None:
        form, schema = self.response_format, self.json_schema
        if form is not None and form.type == "json_object":
            schema = form.schema_ or {"type": "object"}
        elif form is not None and form.type == "json_schema":
            schema = form.json_schema.schema_ if form.json_schema else form.schema_
            if schema is None:
                raise ApiError(
                    400, "response_format lacks json_schema.schema.", param="response_format"
                )
        return None if schema is None else json.dumps(schema)


class RawFields(AnswerFields):
    """Fields of requests that continue a text, which may spell special tokens, as for llama.cpp."""

    parse_special: bool = True

    def as_prompt(self, text: str) -> str:
        return text if self.parse_special else marked(text)


class CountRequest(Record):
    """A conversation whose tokens are counted."""

    model: str | None = None
    messages: Annotated[list[Message], Field(min_length=1)]
    tools: list[FunctionTool] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None

    def chat(self, service: Service, *, sees_images: bool = False) -> Chat:
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
