"""Pieces of a model's answer (text, thoughts and tool calls), and readers that find them."""

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
    custom: bool = False  # its input is text, not JSON


@dataclass(frozen=True, slots=True)
class CallArguments:
    text: str


Piece = Text | Thought | CallBegins | CallArguments


def as_text(piece: Piece) -> str:
    """A piece as text, for callers that do not support calls; thoughts are left out."""
    if isinstance(piece, CallBegins):
        return f"{piece.name} "
    return "" if isinstance(piece, Thought) else piece.text


class Reader(Protocol):
    def push(self, text: str) -> Sequence[Piece]:
        """Add text; return the pieces that are complete."""
        ...

    def finish(self) -> Sequence[Piece]:
        """Return the remaining pieces after the end of the text."""
        ...


class Plain:
    def push(self, text: str) -> Sequence[Piece]:
        return [Text(text)] if text else []

    def finish(self) -> Sequence[Piece]:
        return []
