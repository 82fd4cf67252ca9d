"""An answer's message in any protocol: text, thoughts and calls of tools."""

from __future__ import annotations

import json
import secrets
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from localspec.decoding.logprobs import TokenLogprob
from localspec.prompting.pieces import CallBegins, Piece, Text, Thought


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

    @property
    def called(self) -> bool:
        """Whether it ends with a call that is complete."""
        with suppress(ValueError):
            return bool(self.calls) and json.loads(self.calls[-1].arguments or "{}") is not None
        return False

    def add(self, piece: Piece) -> None:
        if isinstance(piece, Text):
            self.text += piece.text
        elif isinstance(piece, Thought):
            self.thought += piece.text
        elif isinstance(piece, CallBegins):
            self.calls.append(Call(piece.name))
        else:
            self.calls[-1].arguments += piece.text
