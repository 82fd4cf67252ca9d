"""Anthropic's protocol: requests, their conversations in OpenAI's format, and replies."""

import asyncio
import secrets
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field

from localspec.prompting.reasoning import CallArguments, CallBegins, Text, Thought
from localspec.server.answers import AnswerPart, Answers
from localspec.server.failures import ApiError
from localspec.server.openai.chat import ChatRequest, CountRequest, Thinking, begin, prompt_length
from localspec.server.openai.messages import (
    KEPT,
    Content,
    ContentPart,
    FunctionCall,
    FunctionTool,
    Message,
    ToolCall,
)
from localspec.server.reply import Event, NamedEvents
from localspec.server.service import Service
from localspec.server.wire import Object, Record, Sampling, schema_of

_BILLING = "x-anthropic-billing-header:"


def _as_blocks(given: Any) -> Any:
    if isinstance(given, str):
        return [{"type": "text", "text": given}]
    return [given] if isinstance(given, dict) else given


Blocks = Annotated["list[Block]", BeforeValidator(_as_blocks)]
"""A list of blocks, a single block, or a text."""


class Source(Record):
    type: str
    media_type: str = ""
    data: str = ""
    content: Blocks = Field(default_factory=list)


class ToolChange(Record):
    """The tool that a block adds or removes."""

    name: str | None = None
    definition: FunctionTool | None = None


class Block(Record):
    type: str
    source: Source | str | None = None
    title: str | None = None
    context: str | None = None  # of a document
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    id: str | None = None
    name: str | None = None
    tool_name: str | None = None
    input: Object | None = None
    tool_use_id: str | None = None
    content: Blocks | None = None
    is_error: bool | None = None
    tool: ToolChange | None = None

    @property
    def silent(self) -> bool:
        """Whether the model reads nothing of it: it belongs to a tool that the provider runs, or
        changes the tools or the model."""
        provider = ("server_tool_use", "mcp_tool_use", "mcp_tool_listing", "container_upload")
        others = (*provider, "tool_addition", "tool_removal", "fallback")
        return self.type in others or self.type.endswith("_tool_result")

    @property
    def thought(self) -> str:
        return self.thinking or (self.signature or "").partition(KEPT)[2]


class AnthropicMessage(Record):
    role: str
    content: Blocks


class Conversation(Thinking):
    model: str | None = None
    messages: Annotated[list[AnthropicMessage], Field(min_length=1)]
    system: Blocks | None = None
    tools: list[FunctionTool] | None = None
    tool_choice: dict[str, Any] | None = None
    output_config: Object | None = None
    thread: Object | None = None

    def openai_messages(self) -> list[Message]:
        # Claude Code's billing header differs with each request, and would defeat the prefix cache.
        system = [one for one in self.system or () if not (one.text or "").startswith(_BILLING)]
        text = _text(system)
        found = [Message(role="system", content=text)] if text else []
        for message in self.messages:
            blocks = [block for block in message.content if not block.silent]
            if blocks or message.role != "system" or not found:
                found += _messages(message.role, blocks)
        return found

    def offered(self) -> list[FunctionTool]:
        """Return the tools at the end of the conversation, which may add and remove some, and load
        deferred ones by references in results. No deferred tool waits for the provider's search."""
        known, added = self.tools or [], dict[str | None, FunctionTool]()
        searched = any(one.type.startswith("tool_search_tool") for one in known)
        removed = {one.name for one in known if one.defer_loading and not searched}
        for block in chain.from_iterable(message.content for message in self.messages):
            removed -= {one.tool_name for one in block.content or ()}
            if block.tool is None:
                continue
            name = block.tool.name
            if tool := block.tool.definition:
                name = tool.name
                added[name] = tool
            (removed.add if block.type == "tool_removal" else removed.discard)(name)
        known = [*(one for one in known if one.name not in added), *added.values()]
        return [one for one in known if one.name not in removed]

    def fields(self) -> dict[str, Any]:
        """The fields of a `CountRequest` that differ in this protocol."""
        if (self.thread or {}).get("type") == "continue":  # clients then send all messages again
            why = "The thread is not known: nothing is stored. Send the whole conversation."
            raise ApiError(404, why, code="thread_not_found")
        single = (self.tool_choice or {}).get("disable_parallel_tool_use")
        return {
            "messages": self.openai_messages(),
            "tools": [
                one.model_copy(update={"type": "function"}) if one.type == "custom" else one
                for one in self.offered()
            ],
            "parallel_tool_calls": not single if isinstance(single, bool) else None,
            "reasoning": self.reasoning or {"effort": (self.output_config or {}).get("effort")},
        }


class MessagesRequest(Conversation, Sampling):
    """`output_format` is the former name of `output_config.format`."""

    max_tokens: Annotated[int, Field(ge=1)]
    stop_sequences: list[str] | None = None
    output_format: Object | None = None
    stream: bool | None = None

    def fields(self) -> dict[str, Any]:
        """The fields of a `ChatRequest` that differ in this protocol."""
        form = (self.output_config or {}).get("format") or self.output_format
        return {
            **super().fields(),
            "stop": self.stop_sequences,
            "json_schema": schema_of(form, "output_config.format"),
        }


def _messages(role: str, blocks: Sequence[Block]) -> list[Message]:
    found = [
        Message(role="tool", content=_result(block), tool_call_id=block.tool_use_id)
        for block in blocks
        if block.type == "tool_result"
    ]
    calls = [
        ToolCall(
            id=block.id, function=FunctionCall(name=block.name or "", arguments=block.input or {})
        )
        for block in blocks
        if block.type == "tool_use"
    ]
    rest = [block for block in blocks if block.type not in ("tool_use", "tool_result")]
    if rest or calls or not found:
        thoughts = [block.thought for block in rest if block.type == "thinking"]
        thought = "\n".join(thoughts) or None
        one = Message(
            role=role, content=_content(rest), tool_calls=calls or None, reasoning_content=thought
        )
        found.append(one)
    return found


def _result(block: Block) -> Content:
    failed = [Block(type="text", text="Error:")] if block.is_error else []  # as no template has it
    return _content([*failed, *(block.content or ())])


def _content(blocks: Sequence[Block]) -> Content:
    if all(block.type != "image" for block in blocks):
        return _text(blocks)
    return [
        _image(block) if block.type == "image" else ContentPart(type="text", text=_text([block]))
        for block in blocks
    ]


def _image(block: Block) -> ContentPart:
    source = block.source
    if not isinstance(source, Source) or not source.data:
        why = "The server fetches nothing: send the image in a source of type base64."
        raise ApiError(400, f"An image has no data. {why}")
    return ContentPart(type="image", image_url=f"data:{source.media_type};base64,{source.data}")


def _text(blocks: Sequence[Block]) -> str:
    found: list[str] = []
    for block in blocks:
        if block.type in ("thinking", "redacted_thinking"):
            continue
        source = block.source
        found += filter(None, [block.title, block.context])
        if block.type == "document" and isinstance(source, Source) and source.type == "text":
            found.append(source.data)
        elif block.type == "document" and isinstance(source, Source) and source.type == "content":
            found.append(_text(source.content))
        elif block.type in ("search_result", "compaction"):
            found.append(_text(block.content or ()))
        elif block.type in ("text", "tool_reference"):
            found.append(block.text or block.tool_name or "")
        else:
            why = f"The model reads text only, and there is a '{block.type[:40]}' block."
            raise ApiError(400, why)
    return "\n".join(found)


async def messages(service: Service, wanted: MessagesRequest) -> NamedEvents:
    asked = await asyncio.to_thread(lambda: ChatRequest.of(wanted, **wanted.fields()))
    return MessageReply(await begin(service, asked), wanted)


async def count_tokens(service: Service, wanted: Conversation) -> Any:
    counted = await asyncio.to_thread(lambda: CountRequest.of(wanted, **wanted.fields()))
    return {"input_tokens": await prompt_length(service, counted)}


class MessageReply(NamedEvents):
    ping: ClassVar[bytes] = b'event: ping\ndata: {"type":"ping"}\n\n'

    def __init__(self, answers: Answers, wanted: MessagesRequest) -> None:
        super().__init__(answers, streamed=wanted.stream)
        self._omits = (wanted.thinking or {}).get("display") == "omitted"
        self._blocks: list[dict[str, Any]] = []
        self._head: Event = {
            "id": f"msg_{secrets.token_hex(12)}",
            "type": "message",
            "role": "assistant",
            "model": answers.model,
        }
        self._begun = False

    def events_of(self, part: AnswerPart) -> Iterable[Event]:
        if not self._begun:  # only now the number of cached tokens is known
            self._begun = True
            empty: Event = {"content": [], "stop_reason": None, "stop_sequence": None}
            usage = {**self._usage(), "output_tokens": 0}
            yield {"type": "message_start", "message": {**self._head, **empty, "usage": usage}}
        piece = part.piece
        if piece is None:
            return
        kind = _TEXTS[type(piece)][0]
        if isinstance(piece, CallBegins) or not self._blocks or self._blocks[-1]["type"] != kind:
            yield from self._close()
            block: dict[str, Any] = {"type": kind, kind: ""}
            if isinstance(piece, CallBegins):
                block = {"type": kind, "id": self.answer.calls[-1].id, "name": piece.name}
                block["input"] = {}
            elif kind == "thinking":
                block["signature"] = ""
            self._blocks.append(block)
            yield self._block_event("content_block_start", content_block=block)
        if not isinstance(piece, CallBegins):
            _, delta, name = _TEXTS[type(piece)]
            if kind == "thinking" and self._omits:
                kept = self._blocks[-1]["signature"] or KEPT
                self._blocks[-1]["signature"] = kept + piece.text
                return
            if kind != "tool_use":
                self._blocks[-1][kind] += piece.text
            yield self._block_event("content_block_delta", delta={"type": delta, name: piece.text})

    def end(self) -> Iterable[Event]:
        yield from self._close()
        yield {"type": "message_delta", "delta": self._stop_info(), "usage": self._usage()}
        yield {"type": "message_stop"}

    def whole(self) -> Any:
        used = [block for block in self._blocks if block["type"] == "tool_use"]
        for block, call in zip(used, self.answer.calls, strict=True):
            block["input"] = call.as_object()
        return {**self._head, "content": self._blocks, **self._stop_info(), "usage": self._usage()}

    def _close(self) -> Iterable[Event]:
        if not self._blocks:
            return
        block = self._blocks[-1]
        if block["type"] == "thinking":  # clients wait for a signature
            delta = {"type": "signature_delta", "signature": block["signature"]}
            yield self._block_event("content_block_delta", delta=delta)
        yield self._block_event("content_block_stop")

    def _block_event(self, kind: str, **members: Any) -> Event:
        return {"type": kind, "index": len(self._blocks) - 1, **members}

    def _stop_info(self) -> dict[str, Any]:
        reason = "tool_use" if self.answer.called else "end_turn"
        if self.answer.stream.finish_reason == "length":
            reason = "max_tokens"
        elif reason == "end_turn" and self.answer.stopped is not None:
            reason = "stop_sequence"
        return {"stop_reason": reason, "stop_sequence": self.answer.stopped}

    def _usage(self) -> dict[str, Any]:
        stats = self.answer.stream.stats
        return {
            "input_tokens": stats.prompt_tokens - stats.cached_tokens,
            "cache_read_input_tokens": stats.cached_tokens,
            "cache_creation_input_tokens": 0,
            "output_tokens": stats.generated_tokens,
        }


_TEXTS = {
    Text: ("text", "text_delta", "text"),
    Thought: ("thinking", "thinking_delta", "thinking"),
    CallBegins: ("tool_use", "", ""),
    CallArguments: ("tool_use", "input_json_delta", "partial_json"),
}
"""By type of piece: the type of the block, the type of its deltas, and their text field."""
