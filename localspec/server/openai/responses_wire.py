"""What a request to `/v1/responses` consists of, and what it is as a conversation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import Field

from localspec.server.failures import ApiError
from localspec.server.openai.chat_wire import (
    AnswerFields,
    Content,
    FunctionCall,
    Message,
    ToolCall,
)
from localspec.server.tools import NO_PARAMETERS, Tool
from localspec.server.wire import Probability, Record


class Item(Record):
    type: str | None = None
    role: str | None = None
    content: Content | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: Content | None = None


class ResponseTool(Record):
    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None


class TextFormat(Record):
    type: str
    name: str | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None


class TextOptions(Record):
    format: TextFormat | None = None


class Reasoning(Record):
    effort: str | None = None


class ResponsesRequest(Record):
    model: str | None = None
    input: str | list[Item]
    instructions: str | None = None
    max_output_tokens: int | None = None
    stream: bool | None = None
    temperature: Annotated[float, Field(ge=0.0, le=100.0)] | None = None
    top_p: Probability | None = None
    tools: list[ResponseTool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: Reasoning | None = None
    previous_response_id: str | None = None
    conversation: str | dict[str, Any] | None = None
    background: bool | None = None


def messages_in(wanted: ResponsesRequest) -> list[Message]:
    """The items of the input as messages.

    Raises:
        ApiError: one that there is no message for.
    """
    found = []
    if wanted.instructions:
        found.append(Message(role="system", content=wanted.instructions))
    if isinstance(wanted.input, str):
        return [*found, Message(role="user", content=wanted.input)]
    for message in (message for item in wanted.input for message in _messages(item)):
        last = found[-1] if found else None
        if message.tool_calls and last is not None and last.role == "assistant":
            calls = [*(last.tool_calls or ()), *message.tool_calls]  # of one turn
            found[-1] = last.model_copy(update={"tool_calls": calls})
        else:
            found.append(message)
    if not found:
        raise ApiError(400, "The input is empty.", param="input")
    return found


def _messages(item: Item) -> Iterator[Message]:
    kind = item.type or "message"
    if kind == "message":
        yield Message(role=item.role or "user", content=item.content or "")
    elif kind == "function_call":
        function = FunctionCall(name=item.name or "", arguments=item.arguments or "{}")
        yield Message(role="assistant", tool_calls=[ToolCall(id=item.call_id, function=function)])
    elif kind == "function_call_output":
        yield Message(role="tool", content=item.output or "", tool_call_id=item.call_id)
    elif kind != "reasoning":
        raise ApiError(400, f"Items of type '{kind[:40]}' are not known here.", param="input")


def tools_in(wanted: ResponsesRequest) -> list[Tool]:
    """The functions that may be called.

    Raises:
        ApiError: a tool that would run at OpenAI.
    """
    found = []
    for tool in wanted.tools or ():
        if tool.type != "function" or not tool.name:
            raise ApiError(400, "Only tools of type 'function' are known.", param="tools")
        parameters = tool.parameters or NO_PARAMETERS
        found.append(Tool(tool.name, tool.description or "", parameters))
    return found


def format_in(wanted: ResponsesRequest) -> AnswerFields:
    """The format of the text, as chat completions have it."""
    said = wanted.text.format if wanted.text else None
    if said is None:
        return AnswerFields()
    if said.type not in ("text", "json_object", "json_schema"):
        raise ApiError(400, "text.format is none of text, json_object, json_schema.", param="text")
    form: dict[str, Any] = {"type": said.type}
    if said.schema_ is not None:
        form["json_schema"] = {"schema": said.schema_}
    return AnswerFields.model_validate({"response_format": form})


def require_stateless(wanted: ResponsesRequest) -> None:
    """Return unless the request is about one that came before.

    Raises:
        ApiError: nothing is kept here.
    """
    for name in ("previous_response_id", "conversation", "background"):
        if getattr(wanted, name):
            raise ApiError(
                400, f"{name} is not supported: nothing is kept. Send the whole input.", param=name
            )
