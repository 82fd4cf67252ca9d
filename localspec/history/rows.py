"""Conversations and messages as rows of a table, and back."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from localspec.chat.conversation import (
    BY_TEXT,
    INTERRUPTED,
    STATES,
    Attachment,
    Conversation,
    Message,
)

HEADER = (
    *("id", "title", "titled_by", "created", "updated", "system", "sampling"),
    *("max_tokens", "model", "draft", "tip"),
)
"""Columns of a conversation."""

MESSAGE = (
    *("id", "conversation", "parent", "role", "created", "state", "model", "draft"),
    *("finish_reason", "stats", "spans", "attachments", "content"),
)
"""Columns of a message."""

UNTITLED = ""
"""In place of who chose the title: a message came without its conversation, which is made up."""

_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class ConversationHeader:
    """All of a conversation but its messages, at one moment."""

    id: str
    title: str
    titled_by: str
    created: float
    updated: float
    system: str | None = None
    sampling: str = "{}"
    max_tokens: int | None = None
    model: str | None = None
    draft: str | None = None
    tip: str | None = None

    @classmethod
    def of(cls, conversation: Conversation) -> ConversationHeader:
        """The header as it is now."""
        return cls(
            id=conversation.id,
            title=storable(conversation.title),
            titled_by=conversation.titled_by,
            created=conversation.created,
            updated=conversation.updated,
            system=_storable(conversation.system),
            sampling=as_json(conversation.sampling),
            max_tokens=conversation.max_tokens,
            model=_storable(conversation.model),
            draft=_storable(conversation.draft),
            tip=conversation.tip,
        )

    @classmethod
    def from_row(cls, row: Sequence[Any]) -> ConversationHeader:
        """From the columns HEADER; whatever a damaged file holds there."""
        id, title, titled_by, created, updated, system, sampling, longest, model, draft, tip = row
        return cls(
            id=_text(id) or "",
            title=_text(title) or "",
            titled_by=_text(titled_by) or UNTITLED,
            created=_number(created),
            updated=_number(updated),
            system=_text(system),
            sampling=_text(sampling) or "{}",
            max_tokens=longest if isinstance(longest, int) else None,
            model=_text(model),
            draft=_text(draft),
            tip=_text(tip),
        )

    def row(self) -> tuple[Any, ...]:
        """The columns HEADER."""
        return tuple(getattr(self, name) for name in HEADER)

    def conversation(self, messages: Iterable[Message]) -> Conversation:
        """The conversation with these messages, oldest first."""
        return Conversation(
            id=self.id,
            title=self.title,
            titled_by=self.titled_by or BY_TEXT,
            created=self.created,
            updated=self.updated,
            system=self.system,
            sampling={
                str(name): value
                for name, value in _parsed(self.sampling, dict, {}).items()
                if isinstance(value, int | float)
            },
            max_tokens=self.max_tokens,
            model=self.model,
            draft=self.draft,
            tip=self.tip,
            messages={message.id: message for message in messages},
        )


def message_row(message: Message, conversation: str) -> tuple[Any, ...]:
    """The columns MESSAGE."""
    return (
        message.id,
        conversation,
        message.parent,
        message.role,
        message.created,
        message.state,
        _storable(message.model),
        _storable(message.draft),
        message.finish_reason,
        None if message.stats is None else as_json(message.stats),
        None if message.spans is None else packed(message.spans),
        as_json([[each.name, each.text] for each in message.attachments])
        if message.attachments
        else None,
        storable(message.content),
    )


def message_from(row: Sequence[Any]) -> Message:
    """From the columns MESSAGE; whatever a damaged file holds there."""
    id, _, parent, role, created, state, model, draft, finish, stats, spans, files, content = row
    message = Message.unread(
        _text(id) or "",
        _text(parent),
        _text(role) or "",
        _text(content) or "",
        _number(created),
        state if state in STATES else INTERRUPTED,
        [] if files is None else _attachments(files),
        partial(_read, stats, spans),
    )
    message.model, message.draft = _text(model), _text(draft)
    message.finish_reason = _text(finish)
    return message


def _read(stats: object, spans: object, name: str) -> Any:
    if name == "stats":
        return None if stats is None else _parsed(stats, dict, None)
    return None if spans is None else unpacked(spans)


def packed(spans: Iterable[tuple[int, str]]) -> str:
    """Runs as JSON: the sources, and for each run its source's number, and its length.

    Nearly every run has another source than the one before, and the names would take more room
    than the text.
    """
    numbers: dict[str, int] = {}
    lengths: list[int] = []
    which: list[int] = []
    for length, source in spans:
        lengths.append(length)
        which.append(numbers.setdefault(source, len(numbers)))
    return json.dumps([list(numbers), which, lengths], separators=(",", ":"))


def unpacked(text: object) -> list[tuple[int, str]] | None:
    """The runs that `packed` wrote; None where it did not."""
    try:
        sources, which, lengths = _parsed(text, list, [])
        return [
            (int(length), str(sources[number]))
            for length, number in zip(lengths, which, strict=True)
        ]
    except (IndexError, TypeError, ValueError):
        return None


def storable(text: str) -> str:
    """Text that can be written as UTF-8, of the same length: half a surrogate pair cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return _SURROGATE.sub("\ufffd", text)
    return text


def _storable(text: str | None) -> str | None:
    return None if text is None else storable(text)


def as_json(value: object) -> str:
    """JSON; what it has no notation for as text, rather than losing the message that has it."""
    # Escaped, so that it can be written whatever is in it.
    return json.dumps(value, default=str, separators=(",", ":"))


def _attachments(text: object) -> list[Attachment]:
    return [
        Attachment(str(each[0]), str(each[1]))
        for each in _parsed(text, list, [])
        if isinstance(each, list) and len(each) == 2
    ]


def _parsed(text: object, kind: type[Any], default: Any) -> Any:
    try:
        found = json.loads(text) if isinstance(text, str) else default
    except (ValueError, RecursionError):
        return default
    return found if isinstance(found, kind) else default


def _text(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
