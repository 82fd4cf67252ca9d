"""What an answer consists of, whatever protocol it is told in: text, thoughts, calls of tools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from localspec.prompting.detokenizer import CLOSES as CLOSES
from localspec.prompting.detokenizer import OPENS as OPENS


@dataclass(frozen=True, slots=True)
class Text:
    """Some of the answer itself."""

    text: str


@dataclass(frozen=True, slots=True)
class Thought:
    """Some of what the model thinks before it answers."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegins:
    """A tool is called; its arguments follow."""

    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """Some of the arguments, JSON, of the call that began last."""

    text: str


Piece = Text | Thought | CallBegins | CallArguments


class Reader(Protocol):
    """Makes pieces of text as it comes."""

    def push(self, text: str) -> Sequence[Piece]:
        """What some more text made certain."""
        ...

    def finish(self) -> Sequence[Piece]:
        """What was held back: no more text comes."""
        ...


class Plain:
    """Everything is text."""

    def push(self, text: str) -> Sequence[Piece]:
        return [Text(text)] if text else []

    def finish(self) -> Sequence[Piece]:
        return []


class Thinking:
    """What stands between <think> and </think> at the beginning is thought.

    Args:
        inner: reads the rest.
        open: whether the prompt ended with <think>.
    """

    def __init__(self, inner: Reader, *, open: bool) -> None:
        self._inner = inner
        self._held = ""
        self._state = "thinking" if open else "beginning"
        self._silent = True  # no thought was told yet

    def push(self, text: str) -> Sequence[Piece]:
        if self._state == "answering":
            return self._inner.push(text)
        self._held += text
        found: list[Piece] = []
        if self._state == "beginning":
            beginning = self._held.lstrip()
            if beginning.startswith(OPENS):
                self._held, self._state = beginning[len(OPENS) :], "thinking"
            elif OPENS.startswith(beginning):
                return found
            else:
                return [*found, *self._answer()]
        if self._silent:
            self._held = self._held.lstrip("\n")
        at = self._held.find(CLOSES)
        if at >= 0:
            if self._held[:at].rstrip("\n"):
                found.append(Thought(self._held[:at].rstrip("\n")))
            self._held = self._held[at + len(CLOSES) :]
            self._state = "between"
        if self._state == "between":
            self._held = self._held.lstrip("\n")
            return [*found, *self._answer()] if self._held else found
        keep = ending(self._held, CLOSES, also="\n")
        at = len(self._held) - keep
        said, self._held = self._held[:at], self._held[at:]
        self._silent = self._silent and not said
        return [Thought(said)] if said else []

    def finish(self) -> Sequence[Piece]:
        if self._state == "answering":
            return self._inner.finish()
        if self._state == "thinking":
            return [Thought(self._held)] if self._held else []
        return [*self._answer(), *self._inner.finish()]

    def _answer(self) -> Sequence[Piece]:
        self._state, held, self._held = "answering", self._held, ""
        return self._inner.push(held)


def ending(text: str, mark: str, *, also: str = "") -> int:
    """Length of the longest ending of a text that a mark may begin with.

    Args:
        also: characters that may stand before the mark, and belong to it there.
    """
    for length in range(min(len(text), len(mark) - 1), -1, -1):
        if text.endswith(mark[:length]):
            break
    rest = text[: len(text) - length]
    return length + len(rest) - len(rest.rstrip(also)) if also else length
