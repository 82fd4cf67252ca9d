"""Conversations and messages as rows, and back."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

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

HEADER = (
    *("id", "title", "titled_by", "created", "updated", "system", "sampling", "max_tokens"),
    *("model", "draft", "tip"),
)
"""Columns of a conversation."""

_SURROGATE = re.compile("[\ud800-\udfff]")


def header_row(conversation: Conversation) -> tuple[Any, ...]:
    """The columns HEADER."""
    values = {name: _storable(getattr(conversation, name)) for name in HEADER}
    return tuple((values | {"sampling": as_json(conversation.sampling)}).values())


def conversation_from(row: Sequence[Any], messages: Iterable[Message]) -> Conversation:
    """From the columns HEADER, whatever a damaged file holds."""
    values = dict(zip(HEADER, row, strict=True))
    sampling = {
        str(name): value
        for name, value in _parsed(values["sampling"], dict, {}).items()
        if isinstance(value, int | float)
    }
    values["titled_by"] = values["titled_by"] or BY_TEXT
    by_id = {message.id: message for message in messages}
    return Conversation(**_cleaned(Conversation, values), sampling=sampling, messages=by_id)


def message_row(message: Message, conversation: str) -> tuple[Any, ...]:
    """The columns MESSAGE."""
    files = [[each.name, each.text] for each in message.attachments]
    values = {name: _storable(getattr(message, name, None)) for name in MESSAGE}
    values["conversation"] = conversation
    values["stats"] = None if message.stats is None else as_json(message.stats)
    values["spans"] = None if message.spans is None else packed(message.spans)
    values["attachments"] = as_json(files) if files else None
    return tuple(values.values())


def message_from(row: Sequence[Any]) -> Message:
    """From the columns MESSAGE, whatever a damaged file holds."""
    told = dict(zip(MESSAGE, row, strict=True))
    stats, spans, files = told["stats"], told["spans"], told["attachments"]
    message = Message(
        **_cleaned(Message, told),
        stats=None if stats is None else _parsed(stats, dict, None),
        spans=None if spans is None else unpacked(spans),
        attachments=[] if files is None else _attachments(files),
    )
    if message.state not in STATES:
        message.state = INTERRUPTED
    return message


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


_CLEAN: Mapping[str, Callable[[Any], Any]] = {
    "str": lambda value: _text(value) or "",
    "str | None": _text,
    "float": lambda value: float(value) if isinstance(value, int | float) else 0.0,
    "int | None": lambda value: value if isinstance(value, int) else None,
}
"""By the type of a field."""


def _cleaned(kind: type[Any], row: Mapping[str, Any]) -> dict[str, Any]:
    """Values of the plain fields of a dataclass."""
    plain = {field.name: str(field.type) for field in fields(kind) if field.type in _CLEAN}
    return {name: _CLEAN[type](row[name]) for name, type in plain.items()}
