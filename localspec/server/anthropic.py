"""Anthropic's protocol: requests, their conversations in OpenAI's format, and replies."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar

from pydantic import Field

from localspec import Engine
from localspec.prompting.pieces import CallArguments, CallBegins, Piece, Text, Thought
from localspec.server.answers import Answers, Ask, Part
from localspec.server.chat_prompt import Chat, begin, prompt_length
from localspec.server.failures import ApiError
from localspec.server.openai.messages import (
    Content,
    ContentPart,
    FunctionCall,
    Message,
    ToolCall,
    messages_of,
)
from localspec.server.reply import Event, NamedEvents
from localspec.server.service import Service
from localspec.server.tools import Tool, ToolChoice, chosen, without_hosted
from localspec.server.wire import Object, Record, Sampling, sampling_of, schema_of, stops_of

_BILLING = "x-anthropic-billing-header:"


class Source(Record):
    type: str
    media_type: str = ""
    data: str = ""
    content: str | list[Block] = ""


class Block(Record):
    type: str
    source: Source | str | None = None
    title: str | None = None
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    tool_name: str | None = None
    input: Object | None = None
    tool_use_id: str | None = None
    content: str | list[Block] | Block | None = None

    @property
    def hosted(self) -> bool:
        """Whether it is about a tool that the provider runs."""
        others = ("server_tool_use", "mcp_tool_use", "container_upload")
        return self.type in others or self.type.endswith("_tool_result")


class AnthropicMessage(Record):
    role: str
    content: str | list[Block]


class AnthropicTool(Record):
    type: str | None = None
    name: Annotated[str, Field(min_length=1, max_length=128)]
    description: str | None = None
    input_schema: Object | None = None


class Conversation(Record):
    model: str | None = None
    messages: Annotated[list[AnthropicMessage], Field(min_length=1)]
    system: str | list[Block] | None = None
    tools: list[AnthropicTool] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None

    def openai_messages(self) -> list[Message]:
        found = []
        system = self.system
        if system and not isinstance(system, str):  # Claude Code's differs with each request
            system = [one for one in system if not (one.text or "").startswith(_BILLING)]
        if system:
            found.append(Message(role="system", content=_text(system)))
        for message in self.messages:
            if isinstance(message.content, str):
                found.append(Message(role=message.role, content=message.content))
            else:
                blocks = [block for block in message.content if not block.hosted]
                found += _messages(message.role, blocks)
        return found

    def chat(self, service: Service, engine: Engine) -> Chat:
        thinks = self.thinking and self.thinking.get("type") != "disabled"
        return Chat(
            messages=messages_of(self.openai_messages(), sees_images=engine.prompts.sees_images),
            tools=self.choice(),
            variables=service.variables(None, (self.output_config or {}).get("effort"), thinks),
        )

    def choice(self) -> ToolChoice:
        own = [one for one in self.tools or () if one.type in (None, "custom")]
        tools = [Tool.of(one.name, one.description, one.input_schema) for one in own]
        hosted = [one.type for one in self.tools or () if one.type and one.type != "custom"]
        tools = without_hosted(tools, hosted)
        choice = self.tool_choice or {"type": "auto"}
        single = choice.get("disable_parallel_tool_use")
        several = not single if isinstance(single, bool) else None
        return chosen(tools, choice, several=several)


class MessagesRequest(Conversation, Sampling):
    """`output_format` is the former name of `output_config.format`."""

    max_tokens: Annotated[int, Field(ge=1)]
    stop_sequences: list[str] | None = None
    output_format: dict[str, Any] | None = None
    stream: bool | None = None

    def chat(self, service: Service, engine: Engine) -> Chat:
        form = (self.output_config or {}).get("format") or self.output_format
        ask = Ask(
            max_tokens=service.longest(self.max_tokens),
            stop=stops_of(self.stop_sequences),
            sampling=sampling_of(self, service.defaults, engine),
            json_schema=schema_of(form, "output_config.format"),
            shift=service.shift(),
        )
        return replace(super().chat(service, engine), ask=ask)


def _messages(role: str, blocks: Sequence[Block]) -> list[Message]:
    found, shown = list[Message](), list[Block]()
    for block in blocks:
        if block.type == "tool_result":
            parts = block.content if isinstance(block.content, list) else []
            images = [part for part in parts if part.type == "image"]  # which only users show
            content = [p for p in parts if p.type != "image"] if images else block.content or ""
            said = _text(content)
            found.append(Message(role="tool", content=said, tool_call_id=block.tool_use_id))
            shown += images
    calls = [_call(block) for block in blocks if block.type == "tool_use"]
    rest = [block for block in blocks if block.type not in ("tool_use", "tool_result")]
    rest = [*shown, *rest]
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
            source = block.source if isinstance(block.source, Source) else None
            if source is None or not source.data:
                why = "The server fetches nothing: send the image, in a source of type base64."
                raise ApiError(400, f"An image has no data. {why}")
            data = f"data:{source.media_type};base64,{source.data}"
            found.append(ContentPart(type="image", image_url=data))
        else:
            found.append(ContentPart(type="text", text=_text([block])))
    return found


def _call(block: Block) -> ToolCall:
    arguments = json.dumps(block.input or {}, ensure_ascii=False)
    return ToolCall(id=block.id, function=FunctionCall(name=block.name or "", arguments=arguments))


def _text(content: str | Sequence[Block] | Block) -> str:
    if isinstance(content, str):
        return content
    found = []
    for block in [content] if isinstance(content, Block) else content:
        if block.type in ("thinking", "redacted_thinking"):
            continue
        source = block.source
        if block.type == "document" and isinstance(source, Source) and source.type == "text":
            found.append(source.data)
        elif block.type == "document" and isinstance(source, Source) and source.type == "content":
            found.append(_text(source.content))
        elif block.type in ("search_result", "compaction"):
            found += [*filter(None, [block.title]), _text(block.content or "")]
        elif block.type in ("text", "tool_reference"):
            found.append(block.text or block.tool_name or "")
        else:
            raise ApiError(
                400, f"The model reads text only, and there is a '{block.type[:40]}' block."
            )
    return "\n".join(found)


async def messages(service: Service, wanted: MessagesRequest) -> NamedEvents:
    return MessageReply(await begin(service, wanted.model, wanted.chat), streamed=wanted.stream)


async def count_tokens(service: Service, wanted: Conversation) -> Any:
    return {"input_tokens": await prompt_length(service, wanted.model, wanted.chat)}


class MessageReply(NamedEvents):
    ping: ClassVar[bytes] = b'event: ping\ndata: {"type":"ping"}\n\n'

    def __init__(self, answers: Answers, *, streamed: bool | None) -> None:
        super().__init__(answers, streamed=streamed)
        self._blocks: list[dict[str, Any]] = []
        self._head: Event = {
            "id": f"msg_{secrets.token_hex(12)}",
            "type": "message",
            "role": "assistant",
            "model": answers.model,
        }
        self._begun = False

    def events_of(self, part: Part) -> Iterable[Event]:
        if not self._begun:  # now it is known how much of the prompt was cached
            self._begun = True
            empty: Event = {"content": [], "stop_reason": None, "stop_sequence": None}
            usage = {**self._usage(), "output_tokens": 0}
            yield _event("message_start", message={**self._head, **empty, "usage": usage})
        yield from super().events_of(part)

    def events_of_piece(self, piece: Piece) -> Iterable[Event]:
        kind = _TEXTS[type(piece)][0]
        if isinstance(piece, CallBegins) or not self._blocks or self._blocks[-1]["type"] != kind:
            yield from self._close()
            block: dict[str, Any] = {"type": kind, kind: ""}
            if isinstance(piece, CallBegins):
                block = {"type": kind, "id": self.message.calls[-1].id, "name": piece.name}
                block["input"] = {}
            elif kind == "thinking":
                block["signature"] = ""
            self._blocks.append(block)
            yield self._of_block("content_block_start", content_block=block)
        if not isinstance(piece, CallBegins):
            _, delta, name = _TEXTS[type(piece)]
            if kind != "tool_use":
                self._blocks[-1][kind] += piece.text
            yield self._of_block("content_block_delta", delta={"type": delta, name: piece.text})

    def end(self) -> Iterable[Event]:
        yield from self._close()
        yield _event("message_delta", delta=self._ending(), usage=self._usage())
        yield _event("message_stop")

    def whole(self) -> Any:
        used = [block for block in self._blocks if block["type"] == "tool_use"]
        for block, call in zip(used, self.message.calls, strict=True):
            block["input"] = call.as_object()
        return {**self._head, "content": self._blocks, **self._ending(), "usage": self._usage()}

    def _close(self) -> Iterable[Event]:
        if not self._blocks:
            return
        block = self._blocks[-1]
        if block["type"] == "thinking":  # clients wait for a signature
            delta = {"type": "signature_delta", "signature": ""}
            yield self._of_block("content_block_delta", delta=delta)
        yield self._of_block("content_block_stop")

    def _of_block(self, kind: str, **members: Any) -> Event:
        return _event(kind, index=len(self._blocks) - 1, **members)

    def _ending(self) -> dict[str, Any]:
        reason = "tool_use" if self.calls() else "end_turn"
        if self.stream.finish_reason == "length":
            reason = "max_tokens"
        elif reason == "end_turn" and self.stream.stopped is not None:
            reason = "stop_sequence"
        return {"stop_reason": reason, "stop_sequence": self.stream.stopped}

    def _usage(self) -> dict[str, Any]:
        stats = self.stream.stats
        return {
            "input_tokens": stats.prompt_tokens - stats.cached_tokens,
            "cache_read_input_tokens": stats.cached_tokens,
            "cache_creation_input_tokens": 0,
            "output_tokens": stats.generated_tokens,
        }


def _event(kind: str, **members: Any) -> Event:
    return {"type": kind, **members}


_TEXTS = {
    Text: ("text", "text_delta", "text"),
    Thought: ("thinking", "thinking_delta", "thinking"),
    CallBegins: ("tool_use", "", ""),
    CallArguments: ("tool_use", "input_json_delta", "partial_json"),
}
"""By pieces: the block, the kind of a delta, and the name of the text in it."""
