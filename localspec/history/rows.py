"""Conversion of conversations and messages to rows, and back."""

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

MESSAGE = (*(field.name for field in fields(Message) if field.compare), "conversation")
"""Columns of a message: the fields that equality compares, and its conversation's id."""

HEADER = tuple(f.name for f in fields(Conversation) if f.compare and f.name != "messages")
"""Columns of a conversation. A new field of either needs a migration."""

_SURROGATE = re.compile("[\ud800-\udfff]")
_LARGEST = 2**63 - 1
"""The largest integer of SQLite."""


def header_row(conversation: Conversation) -> tuple[Any, ...]:
    """The columns HEADER."""
    return tuple(_stored(getattr(conversation, name)) for name in HEADER)


def conversation_from(row: Sequence[Any], messages: Iterable[Message]) -> Conversation:
    """A conversation from the columns HEADER; a damaged file may hold any values."""
    found: Conversation = record_of(Conversation, row, HEADER, messages={m.id: m for m in messages})
    found.titled_by = found.titled_by or BY_TEXT
    return found


def message_row(message: Message, conversation: str) -> tuple[Any, ...]:
    """The columns MESSAGE."""
    files = [[file.name, file.text] for file in message.attachments]
    values = {name: _stored(getattr(message, name, None)) for name in MESSAGE}
    values["conversation"] = conversation
    values["spans"] = None if message.spans is None else _pack_spans(message.spans)
    values["attachments"] = as_json(files) if files else None
    return tuple(values.values())


def message_from(row: Sequence[Any]) -> Message:
    """A message from the columns MESSAGE; a damaged file may hold any values."""
    message: Message = record_of(Message, row, MESSAGE)
    if message.state not in STATES:
        message.state = INTERRUPTED
    return message


def record_of(kind: type[Any], row: Iterable[Any], columns: Sequence[str] = (), **more: Any) -> Any:
    """A dataclass from columns, by default all its fields; a damaged file may hold any values."""
    types = {field.name: str(field.type) for field in fields(kind)}
    values = dict(zip(columns or types, row, strict=True))
    return kind(**{n: _READERS[types[n]](values[n]) for n in values if n in types}, **more)


def _pack_spans(spans: Iterable[tuple[int, str]]) -> str:
    """Encode runs as JSON: sources, their index by run, lengths; much shorter than names."""
    numbers: dict[str, int] = {}
    lengths: list[int] = []
    which: list[int] = []
    for length, source in spans:
        lengths.append(length)
        which.append(numbers.setdefault(source, len(numbers)))
    return json.dumps([list(numbers), which, lengths], separators=(",", ":"))


def _unpack_spans(text: object) -> list[tuple[int, str]] | None:
    """Decode `_pack_spans`; None for other text."""
    try:
        sources, which, lengths = _parse_json(text, list, [])
        return [
            (int(length), str(sources[number]))
            for length, number in zip(lengths, which, strict=True)
        ]
    except (IndexError, TypeError, ValueError):
        return None


def storable(text: str) -> str:
    """Replace lone surrogates, so that the text can be encoded as UTF-8; keeps its length."""
    return _SURROGATE.sub("\ufffd", text)


def _stored(value: Any) -> Any:
    if isinstance(value, dict):
        return as_json(value)
    if isinstance(value, int):
        return min(value, _LARGEST)
    return storable(value) if isinstance(value, str) else value


def as_json(value: object) -> str:
    """JSON, with `str` of values it cannot represent."""
    # ASCII escapes, so that lone surrogates can be stored.
    return json.dumps(value, default=str, separators=(",", ":"))


def _attachments(text: object) -> list[Attachment]:
    return [
        Attachment(str(file[0]), str(file[1]))
        for file in _parse_json(text, list, [])
        if isinstance(file, list) and len(file) == 2
    ]


def _sampling(text: object) -> dict[str, float | int]:
    found = _parse_json(text, dict, {}).items()
    return {name: value for name, value in found if isinstance(value, int | float)}


def _parse_json(text: object, kind: type[Any], default: Any) -> Any:
    try:
        found = json.loads(text) if isinstance(text, str) else default
    except (ValueError, RecursionError):
        return default
    return found if isinstance(found, kind) else default


def _text(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _is_time(value: object) -> bool:
    """Whether a number is a Unix time that has a date."""
    return isinstance(value, int | float) and 0 <= value < _YEAR_9999


_YEAR_9999 = 253_370_764_800
_READERS: Mapping[str, Callable[[Any], Any]] = {
    "str": lambda value: _text(value) or "",
    "str | None": _text,
    "float": lambda value: float(value) if _is_time(value) else 0.0,
    "int": lambda value: value if isinstance(value, int) else 0,
    "int | None": lambda value: value if isinstance(value, int) else None,
    "dict[str, float | int]": _sampling,
    "dict[str, Any] | None": lambda text: _parse_json(text, dict, None),
    "list[tuple[int, str]] | None": _unpack_spans,
    "list[Attachment]": _attachments,
}
"""By the type of a field."""
