"""Parts of a model's answer: text, thoughts and calls of tools; and readers, which find them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Text:
    text: str


@dataclass(frozen=True, slots=True)
class Thought:
    text: str


@dataclass(frozen=True, slots=True)
class CallBegins:
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    text: str


Piece = Text | Thought | CallBegins | CallArguments


def as_text(piece: Piece) -> str:
    """For those that know no calls; nothing of a thought."""
    if isinstance(piece, CallBegins):
        return f"{piece.name} "
    return "" if isinstance(piece, Thought) else piece.text


class Reader(Protocol):
    def push(self, text: str) -> Sequence[Piece]:
        """The pieces that some more text makes certain."""
        ...

    def finish(self) -> Sequence[Piece]:
        """What was held back: no more text comes."""
        ...


class Plain:
    def push(self, text: str) -> Sequence[Piece]:
        return [Text(text)] if text else []

    def finish(self) -> Sequence[Piece]:
        return []
