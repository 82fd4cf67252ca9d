"""Requests to `/v1/responses`, and their conversations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from localspec.server.failures import ApiError
from localspec.server.openai.messages import Content, FunctionCall, Message, ToolCall
from localspec.server.tools import Tool
from localspec.server.wire import Record, Sampling


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


class ResponsesRequest(Sampling):
    model: str | None = None
    input: str | list[Item]
    instructions: str | None = None
    max_output_tokens: int | None = None
    stream: bool | None = None
    tools: list[ResponseTool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: dict[str, Any] | None = None
    reasoning: dict[str, Any] | None = None
    previous_response_id: str | None = None
    conversation: str | dict[str, Any] | None = None
    background: bool | None = None

    def messages(self) -> list[Message]:
        for name in ("previous_response_id", "conversation", "background"):
            if getattr(self, name):
                raise ApiError(
                    400,
                    f"{name} is not supported: nothing is kept. Send the whole input.",
                    param=name,
                )
        items = [Item(content=self.input)] if isinstance(self.input, str) else self.input
        found: list[Message] = []
        for message in (message for item in items for message in _messages(item)):
            last = found[-1] if found else None
            if message.tool_calls and last is not None and last.role == "assistant":
                calls = [*(last.tool_calls or ()), *message.tool_calls]  # of one turn
                found[-1] = last.model_copy(update={"tool_calls": calls})
            else:
                found.append(message)
        if not found:
            raise ApiError(400, "The input is empty.", param="input")
        if self.instructions:
            found.insert(0, Message(role="system", content=self.instructions))
        return found

    def functions(self) -> list[Tool]:
        found = []
        for tool in self.tools or ():
            if tool.type != "function" or not tool.name:
                raise ApiError(400, "Only tools of type 'function' are known.", param="tools")
            found.append(Tool.of(tool.name, tool.description, tool.parameters))
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
