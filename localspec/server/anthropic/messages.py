"""`/v1/messages`, and counting the tokens of one."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import Any, ClassVar

from localspec import Engine
from localspec.prompting.pieces import CallArguments, CallBegins, Piece, Text, Thought
from localspec.server.answers import Answers, Ask, Part
from localspec.server.anthropic.wire import Conversation, MessagesRequest
from localspec.server.conversation import Chat, ask_of
from localspec.server.failures import ApiError, anthropic_body
from localspec.server.openai.messages import messages_of
from localspec.server.reply import Event, NamedEvents
from localspec.server.service import Service
from localspec.server.wire import sampling_of, schema_of, stops_of


async def messages(service: Service, wanted: MessagesRequest) -> NamedEvents:
    engine = await service.open(wanted.model)
    form = (wanted.output_config or {}).get("format") or wanted.output_format
    ask = Ask(
        max_tokens=service.longest(wanted.max_tokens),
        stop=stops_of(wanted.stop_sequences),
        sampling=sampling_of(wanted, service.defaults, engine),
        json_schema=schema_of(form, "output_config.format"),
        shift=service.shift(),
    )
    answers = await service.begin(engine, await _with_prompt(service, engine, wanted, ask))
    return MessageReply(answers, streamed=wanted.stream)


async def count_tokens(service: Service, wanted: Conversation) -> Any:
    engine = await service.open(wanted.model)
    ask = await _with_prompt(service, engine, wanted, Ask())
    return {"input_tokens": len(ask.prompt)}


async def _with_prompt(service: Service, engine: Engine, wanted: Conversation, ask: Ask) -> Ask:
    thinking = wanted.thinking
    thinks = None if thinking is None else {"enable_thinking": thinking.get("type") != "disabled"}
    chat = Chat(
        messages=messages_of(wanted.openai_messages(), sees_images=engine.prompts.sees_images),
        ask=ask,
        tools=wanted.choice(),
        variables=service.variables(thinks),
    )
    return await ask_of(engine, chat)


class MessageReply(NamedEvents):
    ping: ClassVar[bytes] = b'event: ping\ndata: {"type":"ping"}\n\n'

    def __init__(self, answers: Answers, *, streamed: bool | None) -> None:
        super().__init__(answers, streamed=streamed)
        self._begun = False
        self._index, self._open = -1, ""  # the block that is open
        self._head = {
            "id": f"msg_{secrets.token_hex(12)}",
            "type": "message",
            "role": "assistant",
            "model": answers.model,
        }

    def events_of(self, part: Part) -> Iterable[Event]:
        if not self._begun:  # now it is known how much of the prompt was cached
            self._begun = True
            empty: Event = {"content": [], "stop_reason": None, "stop_sequence": None}
            usage = {**self._usage(), "output_tokens": 0}
            yield _event("message_start", message={**self._head, **empty, "usage": usage})
        yield from super().events_of(part)

    def events_of_piece(self, piece: Piece) -> Iterable[Event]:
        begins = isinstance(piece, CallBegins)
        kind = "tool_use" if begins or isinstance(piece, CallArguments) else "text"
        if isinstance(piece, Thought):
            kind = "thinking"
        if kind != self._open or begins:
            yield from self._close()
            self._index, self._open = self._index + 1, kind
            block = self._block(kind)
            yield _event("content_block_start", index=self._index, content_block=block)
        if not isinstance(piece, CallBegins):
            yield _event("content_block_delta", index=self._index, delta=_delta(piece))

    def end(self) -> Iterable[Event]:
        yield from self._close()
        yield _event("message_delta", delta=self._ending(), usage=self._usage())
        yield _event("message_stop")

    def failed(self, error: ApiError) -> Event:
        return anthropic_body(error)

    def whole(self) -> Any:
        blocks: list[dict[str, Any]] = []
        if self.message.thought:
            blocks.append(_thinking(self.message.thought))
        if self.message.text:
            blocks.append({"type": "text", "text": self.message.text})
        for call in self.message.calls:
            block = {"type": "tool_use", "id": call.id, "name": call.name}
            blocks.append({**block, "input": call.as_object()})
        return {**self._head, "content": blocks, **self._ending(), "usage": self._usage()}

    def _close(self) -> Iterable[Event]:
        if self._open == "thinking":  # clients wait for a signature
            delta = {"type": "signature_delta", "signature": ""}
            yield _event("content_block_delta", index=self._index, delta=delta)
        if self._open:
            yield _event("content_block_stop", index=self._index)

    def _block(self, kind: str) -> dict[str, Any]:
        if kind == "tool_use":
            call = self.message.calls[-1]
            return {"type": kind, "id": call.id, "name": call.name, "input": {}}
        return {"type": "text", "text": ""} if kind == "text" else _thinking("")

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


def _delta(piece: Text | Thought | CallArguments) -> Event:
    if isinstance(piece, Text):
        return {"type": "text_delta", "text": piece.text}
    if isinstance(piece, Thought):
        return {"type": "thinking_delta", "thinking": piece.text}
    return {"type": "input_json_delta", "partial_json": piece.text}


def _thinking(text: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": text, "signature": ""}
