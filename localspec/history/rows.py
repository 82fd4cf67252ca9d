"""Conversations and messages as rows, and back."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from localspec.chat.conversation import (
    BY_TEXT,
    INTERRUPTED,
    STATES,
    Attachment,
    Conversation,
    Message,
)

MESSAGE = (
    *("id", "conversation", "parent", "role", "created", "state", "model", "draft"),
    *("finish_reason", "stats", "spans", "attachments", "content"),
)
"""Columns of a message."""

UNTITLED = ""
"""`titled_by` of a made-up header: a message came without its conversation."""

_SURROGATE = re.compile("[\ud800-\udfff]")


class ConversationHeader(NamedTuple):
    """A conversation without its messages; the columns of its row."""

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
        values = {name: getattr(conversation, name) for name in cls._fields}
        values["sampling"] = as_json(conversation.sampling)
        return cls(**{name: _storable(value) for name, value in values.items()})

    @classmethod
    def from_row(cls, row: Sequence[Any]) -> ConversationHeader:
        """From its columns, whatever a damaged file holds."""
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

    def conversation(self, messages: Iterable[Message]) -> Conversation:
        values = self._asdict()
        values["titled_by"] = self.titled_by or BY_TEXT
        values["sampling"] = {
            str(name): value
            for name, value in _parsed(self.sampling, dict, {}).items()
            if isinstance(value, int | float)
        }
        return Conversation(**values, messages={message.id: message for message in messages})


HEADER = ConversationHeader._fields


def message_row(message: Message, conversation: str) -> tuple[Any, ...]:
    """The columns MESSAGE."""
    files = [[each.name, each.text] for each in message.attachments]
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
        as_json(files) if files else None,
        storable(message.content),
    )


def message_from(row: Sequence[Any]) -> Message:
    """From the columns MESSAGE, whatever a damaged file holds."""
    id, _, parent, role, created, state, model, draft, finish, stats, spans, files, content = row
    return Message(
        id=_text(id) or "",
        parent=_text(parent),
        role=_text(role) or "",
        content=_text(content) or "",
        created=_number(created),
        state=state if state in STATES else INTERRUPTED,
        model=_text(model),
        draft=_text(draft),
        finish_reason=_text(finish),
        stats=None if stats is None else _parsed(stats, dict, None),
        spans=None if spans is None else unpacked(spans),
        attachments=[] if files is None else _attachments(files),
    )


def packed(spans: Iterable[tuple[int, str]]) -> str:
    """Runs as JSON: sources, their numbers by run, lengths; much shorter than names."""
    numbers: dict[str, int] = {}
    lengths: list[int] = []
    which: list[int] = []
    for length, source in spans:
        lengths.append(length)
        which.append(numbers.setdefault(source, len(numbers)))
    return json.dumps([list(numbers), which, lengths], separators=(",", ":"))


def unpacked(text: object) -> list[tuple[int, str]] | None:
    """The opposite of `packed`; None for other text."""
    try:
        sources, which, lengths = _parsed(text, list, [])
        return [
            (int(length), str(sources[number]))
            for length, number in zip(lengths, which, strict=True)
        ]
    except (IndexError, TypeError, ValueError):
        return None


def storable(text: str) -> str:
    """Text of the same length that can be UTF-8: without half surrogate pairs."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return _SURROGATE.sub("\ufffd", text)
    return text


def _storable(value: Any) -> Any:
    return storable(value) if isinstance(value, str) else value


def as_json(value: object) -> str:
    """JSON, with text for what it cannot write."""
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
