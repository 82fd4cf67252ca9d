"""Anthropic's requests, and their conversations in OpenAI's format."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field

from localspec.server.failures import ApiError
from localspec.server.openai.messages import Content, ContentPart, FunctionCall, Message, ToolCall
from localspec.server.tools import Tool, ToolChoice, chosen
from localspec.server.wire import Record, Sampling


class Source(Record):
    type: str
    media_type: str = ""
    data: str = ""


class Block(Record):
    type: str
    source: Source | None = None
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | list[Block] | None = None


class AnthropicMessage(Record):
    role: str
    content: str | list[Block]


class AnthropicTool(Record):
    name: Annotated[str, Field(min_length=1, max_length=128)]
    description: str | None = None
    input_schema: dict[str, Any]


class Conversation(Record):
    model: str | None = None
    messages: Annotated[list[AnthropicMessage], Field(min_length=1)]
    system: str | list[Block] | None = None
    tools: list[AnthropicTool] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None

    def openai_messages(self) -> list[Message]:
        found = []
        if self.system:
            found.append(Message(role="system", content=_text(self.system)))
        for message in self.messages:
            if isinstance(message.content, str):
                found.append(Message(role=message.role, content=message.content))
            else:
                found += _messages(message.role, message.content)
        return found

    def choice(self) -> ToolChoice:
        tools = [Tool.of(one.name, one.description, one.input_schema) for one in self.tools or ()]
        choice = self.tool_choice or {"type": "auto"}
        several = choice.get("disable_parallel_tool_use") is False
        return chosen(tools, choice, several=several)


class MessagesRequest(Conversation, Sampling):
    """`output_format` is the former name of `output_config.format`."""

    max_tokens: Annotated[int, Field(ge=1)]
    stop_sequences: list[str] | None = None
    output_config: dict[str, Any] | None = None
    output_format: dict[str, Any] | None = None
    stream: bool | None = None


def _messages(role: str, blocks: Sequence[Block]) -> list[Message]:
    found = [
        Message(role="tool", content=_text(block.content or ""), tool_call_id=block.tool_use_id)
        for block in blocks
        if block.type == "tool_result"
    ]
    calls = [_call(block) for block in blocks if block.type == "tool_use"]
    rest = [block for block in blocks if block.type not in ("tool_use", "tool_result")]
    if rest or calls or not found:
        thoughts = [block.thinking or "" for block in rest if block.type == "thinking"]
        thought = "\n".join(thoughts) or None
        one = Message(
            role=role, content=_content(rest), tool_calls=calls or None, reasoning_content=thought
        )
        found.append(one)
    return found


def _content(blocks: Sequence[Block]) -> Content:
    if all(block.type != "image" for block in blocks):
        return _text(blocks)
    found = []
    for block in blocks:
        if block.type == "image":
            source = block.source
            data = source and source.data and f"data:{source.media_type};base64,{source.data}"
            found.append(ContentPart(type="image_url", image_url=data or None))
        else:
            found.append(ContentPart(type="text", text=_text([block])))
    return found


def _call(block: Block) -> ToolCall:
    arguments = json.dumps(block.input or {}, ensure_ascii=False)
    return ToolCall(id=block.id, function=FunctionCall(name=block.name or "", arguments=arguments))


def _text(content: str | Sequence[Block]) -> str:
    if isinstance(content, str):
        return content
    found = []
    for block in content:
        if block.type in ("thinking", "redacted_thinking"):
            continue
        if block.type == "document" and block.source and block.source.type == "text":
            found.append(block.source.data)
            continue
        if block.type != "text":
            raise ApiError(
                400, f"The model reads text only, and there is a '{block.type[:40]}' block."
            )
        found.append(block.text or "")
    return "\n".join(found)
