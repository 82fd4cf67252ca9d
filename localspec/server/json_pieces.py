"""JSON as it is written by a model: members of an object, before the object is complete."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import NamedTuple

_SPACE = " \t\r\n"


class NotJson(ValueError):
    """What comes cannot be the object that was expected."""


class MemberText(NamedTuple):
    """Some of the raw text of a member's value.

    Attributes:
        key: of the member.
        text: raw JSON; "" where only the end is told.
        complete: whether the value ends here.
    """

    key: str
    text: str
    complete: bool


class ObjectReader:
    """Reads one object, character by character, and tells its members as they come.

    Attributes:
        complete: whether its closing brace has come.
    """

    def __init__(self) -> None:
        self.complete = False
        self._expects: Callable[[str], MemberText | None] = self._brace
        self._key: list[str] = []
        self._name = ""
        self._depth = 0
        self._in_string = self._escaped = False
        self._kind = ""  # of a value: "string", "nested" or "plain"

    def read(self, char: str) -> MemberText | None:
        """One more character.

        Raises:
            NotJson: it cannot stand here.
        """
        return self._expects(char)

    def _brace(self, char: str) -> None:
        if char == "{":
            self._expects = self._first_key
        elif char not in _SPACE:
            raise NotJson(char)

    def _first_key(self, char: str) -> None:
        if char == "}":
            self._end()
        else:
            self._quote(char)

    def _quote(self, char: str) -> None:
        if char == '"':
            self._key = [char]
            self._expects = self._in_key
        elif char not in _SPACE:
            raise NotJson(char)

    def _in_key(self, char: str) -> None:
        self._key.append(char)
        if self._escaped:
            self._escaped = False
        elif char == "\\":
            self._escaped = True
        elif char == '"':
            try:
                self._name = json.loads("".join(self._key))
            except ValueError:
                raise NotJson("".join(self._key)) from None
            self._expects = self._colon

    def _colon(self, char: str) -> None:
        if char == ":":
            self._expects = self._value
        elif char not in _SPACE:
            raise NotJson(char)

    def _value(self, char: str) -> MemberText | None:
        if char in _SPACE:
            return None
        self._depth, self._in_string, self._escaped = 0, False, False
        if char in "{[":
            self._kind, self._depth = "nested", 1
        elif char == '"':
            self._kind, self._in_string = "string", True
        elif char in "-0123456789tfn":
            self._kind = "plain"
        else:
            raise NotJson(char)
        self._expects = self._in_value
        return MemberText(self._name, char, complete=False)

    def _in_value(self, char: str) -> MemberText | None:
        if self._in_string:
            if self._escaped:
                self._escaped = False
            elif char == "\\":
                self._escaped = True
            elif char == '"':
                self._in_string = False
                if self._kind == "string":
                    return self._ends_with(char)
            return MemberText(self._name, char, complete=False)
        if self._kind == "plain":
            if char in ",}" or char in _SPACE:
                told = self._ends_with("")
                self._after(char)
                return told
            return MemberText(self._name, char, complete=False)
        if char == '"':
            self._in_string = True
        elif char in "{[":
            self._depth += 1
        elif char in "}]":
            self._depth -= 1
            if self._depth == 0:
                return self._ends_with(char)
        return MemberText(self._name, char, complete=False)

    def _ends_with(self, char: str) -> MemberText:
        self._expects = self._after
        return MemberText(self._name, char, complete=True)

    def _after(self, char: str) -> None:
        if char == ",":
            self._expects = self._quote
        elif char == "}":
            self._end()
        elif char not in _SPACE:
            raise NotJson(char)

    def _end(self) -> None:
        self.complete = True
        self._expects = self._beyond

    def _beyond(self, char: str) -> None:
        if char not in _SPACE:
            raise NotJson(char)


class StringDecoder:
    """The text of a JSON string, as its raw characters come."""

    def __init__(self) -> None:
        self._held = ""

    def push(self, raw: str) -> str:
        """What some more of it says; the quotes around it say nothing."""
        said: list[str] = []
        for char in raw:
            if self._held:
                self._held += char
                if self._whole():
                    said.append(_decoded(self._held))
                    self._held = ""
            elif char == "\\":
                self._held = char
            elif char != '"':
                said.append(char)
        return "".join(said)

    def _whole(self) -> bool:
        """Whether an escape is complete; one of a surrogate pair has another one behind it."""
        held = self._held
        if held[1:2] != "u":
            return len(held) == 2
        if len(held) == 6 and held[2:4].lower() in ("d8", "d9", "da", "db"):
            return False
        if len(held) > 6:
            return len(held) == 12 or (len(held) == 7 and held[6] != "\\")
        return len(held) == 6


def _decoded(escape: str) -> str:
    try:
        text = str(json.loads(f'"{escape}"'))
        return text.encode("utf-8", "replace").decode()
    except ValueError:
        return "\ufffd"
