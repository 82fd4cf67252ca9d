"""An answer's parts in any protocol: text, thoughts and calls of tools."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from localspec.decoding.logprobs import TokenLogprob
from localspec.prompting.detokenizer import CLOSES as CLOSES
from localspec.prompting.detokenizer import OPENS as OPENS
from localspec.prompting.detokenizer import held_back


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


@dataclass(slots=True)
class Call:
    name: str
    arguments: str = ""
    id: str = field(default_factory=lambda: f"call_{secrets.token_hex(12)}")

    def as_openai(self) -> dict[str, Any]:
        function = {"name": self.name, "arguments": self.arguments or "{}"}
        return {"id": self.id, "type": "function", "function": function}

    def as_object(self) -> Any:
        """The arguments parsed; {} where the answer was cut off within them."""
        try:
            return json.loads(self.arguments or "{}")
        except ValueError:
            return {}


@dataclass(slots=True)
class AnswerMessage:
    text: str = ""
    thought: str = ""
    calls: list[Call] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)

    def add(self, piece: Piece) -> None:
        if isinstance(piece, Text):
            self.text += piece.text
        elif isinstance(piece, Thought):
            self.thought += piece.text
        elif isinstance(piece, CallBegins):
            self.calls.append(Call(piece.name))
        else:
            self.calls[-1].arguments += piece.text


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


class Thinking:
    """Text between <think> and </think> at the beginning is thought; `open`: the prompt ended with
    it."""

    def __init__(self, inner: Reader, *, open: bool) -> None:
        self._inner = inner
        self._held = ""
        self._state = "thinking" if open else "beginning"
        self._silent = True  # no thought so far

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
                return self._answer()
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
        at = len(self._held) - held_back(self._held, CLOSES, also="\n")
        thought, self._held = self._held[:at], self._held[at:]
        self._silent = self._silent and not thought
        return [Thought(thought)] if thought else []

    def finish(self) -> Sequence[Piece]:
        if self._state == "thinking":
            return [Thought(self._held)] if self._held else []
        return [*self._answer(), *self._inner.finish()]

    def _answer(self) -> Sequence[Piece]:
        self._state, held, self._held = "answering", self._held, ""
        return self._inner.push(held)


def joined(pieces: Iterable[Piece]) -> list[Piece]:
    """The same with neighbours of a kind in one."""
    found: list[Piece] = []
    for piece in pieces:
        last = found[-1] if found else None
        if isinstance(piece, CallArguments) and isinstance(last, CallArguments):
            found[-1] = CallArguments(last.text + piece.text)
        elif isinstance(piece, Text) and isinstance(last, Text):
            found[-1] = Text(last.text + piece.text)
        else:
            found.append(piece)
    return found
