"""Lists of conversations and search hits, for people or for other programs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from localspec.chat.titles import one_line
from localspec.cli.tables import shortened, table
from localspec.history.history import ConversationSummary, SearchHit
from localspec.history.search import parts

ID = 8
"""Characters of an id that are shown."""
_TITLE = 24
"""Cells of a title beside a text."""


def plain(text: str) -> str:
    """A title or name in one line, without what steers a terminal."""
    return one_line(text) or "(no title)"


def conversations(found: Sequence[ConversationSummary], *, terminal: bool) -> str:
    """A line each. On a terminal in columns; elsewhere whole, with tabs between them."""
    rows = [
        (
            str(number),
            each.id[:ID] if terminal else each.id,
            _when(each.updated),
            str(each.messages),
            _name(each.model),
            plain(each.title),
        )
        for number, each in enumerate(found, start=1)
    ]
    if not terminal:
        return _separated(rows)
    header = ("#", "ID", "UPDATED", "MESSAGES", "MODEL", "TITLE")
    return table(header, rows, right=("#", "MESSAGES"), spare=("MODEL", "MESSAGES"), cut="TITLE")


def hits(found: Sequence[SearchHit], *, terminal: bool) -> str:
    """A line each, as in `conversations`."""
    rows = [
        (
            each.conversation[:ID] if terminal else each.conversation,
            _when(each.updated),
            each.role or "title",
            shortened(plain(each.title), _TITLE) if terminal else plain(each.title),
            plain("".join(text for text, _ in parts(each.snippet))),
        )
        for each in found
    ]
    if not terminal:
        return _separated(rows)
    header = ("ID", "UPDATED", "WHERE", "TITLE", "TEXT")
    return table(header, rows, spare=("UPDATED",), cut="TEXT")


def _separated(rows: Sequence[tuple[str, ...]]) -> str:
    return "".join("\t".join(row) + "\n" for row in rows)


def _when(seconds: float) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
    except (OverflowError, ValueError, OSError):  # a damaged file may hold any number
        return "?"


def _name(model: str | None) -> str:
    """The model's name; conversations of older versions have paths."""
    name = Path(model or "")
    return plain(name.stem if name.suffix.lower() == ".gguf" else model) if model else "-"
