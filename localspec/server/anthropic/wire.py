"""What a request for a message consists of, and what it is in the words of templates."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from localspec.server.failures import ApiError
from localspec.server.images import data_url
from localspec.server.openai.chat_wire import (
    Content,
    ContentPart,
    FunctionCall,
    Message,
    ToolCall,
)
from localspec.server.tools import Tool, ToolChoice, chosen
from localspec.server.wire import Probability, Record


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
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None


class Choice(Record):
    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Record):
    type: str


class OutputFormat(Record):
    type: Literal["json_schema"]
    schema_: Annotated[dict[str, Any], Field(alias="schema")]


class OutputConfig(Record):
    format: OutputFormat | None = None


class Conversation(Record):
    """What messages and the counting of their tokens have in common."""

    model: str | None = None
    messages: Annotated[list[AnthropicMessage], Field(min_length=1)]
    system: str | list[Block] | None = None
    tools: list[AnthropicTool] | None = None
    tool_choice: Choice | None = None
    thinking: Thinking | None = None


class MessagesRequest(Conversation):
    max_tokens: Annotated[int, Field(ge=1)]
    stop_sequences: list[str] | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    """What it was called before."""
    stream: bool | None = None
    temperature: Annotated[float, Field(ge=0.0, le=100.0)] | None = None
    top_p: Probability | None = None
    top_k: Annotated[int, Field(ge=0, le=1_000_000)] | None = None


def schema_in(wanted: MessagesRequest) -> str | None:
    """The JSON schema that the answer has to match, as text.

    Raises:
        ApiError: it is too large.
    """
    form = wanted.output_config.format if wanted.output_config else None
    form = form or wanted.output_format
    if form is None:
        return None
    return json.dumps(form.schema_)


def messages_in(wanted: Conversation) -> list[Message]:
    """The messages, results of tools and the system prompt as OpenAI has them.

    Raises:
        ApiError: something in them that is no text.
    """
    found = []
    if wanted.system:
        found.append(Message(role="system", content=_text(wanted.system)))
    for message in wanted.messages:
        if isinstance(message.content, str):
            found.append(Message(role=message.role, content=message.content))
            continue
        results = [block for block in message.content if block.type == "tool_result"]
        found += [
            Message(role="tool", content=_text(block.content or ""), tool_call_id=block.tool_use_id)
            for block in results
        ]
        calls = [_call(block) for block in message.content if block.type == "tool_use"]
        said = [b for b in message.content if b.type not in ("tool_use", "tool_result")]
        if said or calls or not results:
            thoughts = [block.thinking or "" for block in said if block.type == "thinking"]
            found.append(
                Message(
                    role=message.role,
                    content=_content(said),
                    tool_calls=calls or None,
                    reasoning_content="\n".join(thoughts) or None,
                )
            )
    return found


def _content(blocks: Sequence[Block]) -> Content:
    """Texts, or texts and images."""
    if all(block.type != "image" for block in blocks):
        return _text(blocks)
    found = []
    for block in blocks:
        if block.type == "image":
            source = block.source
            url = data_url(source.media_type, source.data) if source and source.data else None
            found.append(ContentPart(type="image_url", image_url=url))
        else:
            found.append(ContentPart(type="text", text=_text([block])))
    return found


def _call(block: Block) -> ToolCall:
    arguments = json.dumps(block.input or {}, ensure_ascii=False)
    return ToolCall(id=block.id, function=FunctionCall(name=block.name or "", arguments=arguments))


def _text(content: str | Sequence[Block]) -> str:
    if isinstance(content, str):
        return content
    said = []
    for block in content:
        if block.type in ("thinking", "redacted_thinking"):
            continue
        if block.type != "text":
            raise ApiError(
                400, f"The model reads text only, and there is a '{block.type[:40]}' block."
            )
        said.append(block.text or "")
    return "\n".join(said)


def tools_in(wanted: Conversation) -> ToolChoice:
    """The tools, and what is wanted of them.

    Raises:
        ApiError: one that runs elsewhere, or a choice among what is not there.
    """
    tools = []
    for tool in wanted.tools or ():
        if tool.input_schema is None:
            raise ApiError(400, f"The tool '{tool.name[:40]}' has no input_schema.", param="tools")
        tools.append(Tool(tool.name, tool.description or "", tool.input_schema))
    choice = wanted.tool_choice
    if choice is None:
        return chosen(tools, "auto", several=False)
    several = choice.disable_parallel_tool_use is False
    if choice.type == "tool":
        return chosen(tools, {"name": choice.name}, several=several)
    return chosen(tools, choice.type, several=several)
