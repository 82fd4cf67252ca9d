"""Calls of tools, found in a model's text as it comes.

What there is of a call is parsed again with every piece: pydantic's parser also reads the beginning
of a value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Literal

from pydantic_core import from_json

from localspec.server.pieces import CallArguments, CallBegins, Piece, Text, held_back

_ARGUMENTS = re.compile(r'"(?:arguments|parameters)"\s*:\s*(?=\S)')
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")


class NotCall(ValueError):
    """The text cannot be a call."""


class CallReader:
    """Reads one call: an object with a name and arguments, in either order. `raw` is its text,
    `rest` the text after it; it has `begun` once a piece was returned."""

    def __init__(self) -> None:
        self.raw = self.rest = ""
        self.complete = self.begun = False
        self._returned = 0  # characters of the arguments

    def push(self, text: str) -> list[Piece]:
        """Pieces that some more text makes certain; NotCall where it cannot be a call."""
        self.raw += text
        if self.raw.isspace():
            return []
        call = _parsed(self.raw, True)
        end = _end(self.raw, len(self.raw) - len(self.raw.lstrip()))
        if end is not None:
            self.complete, self.raw, self.rest = True, self.raw[:end], self.raw[end:]
        name = call.get("name") if isinstance(call, dict) else ""
        if name is None and not self.complete:
            return []
        if not (isinstance(name, str) and isinstance(call, dict)):
            raise NotCall(self.raw)
        found: list[Piece] = [] if self.begun else [CallBegins(name)]
        self.begun = True
        arguments = self._arguments()
        return [*found, CallArguments(arguments)] if arguments else found

    def _arguments(self) -> str:
        """What is new of the arguments; those in a string come at once, and none are {}."""
        match = _ARGUMENTS.search(self.raw)
        if match is None:
            return "{}" if self.complete else ""
        start, end = match.end(), _end(self.raw, match.end())
        if self.raw[start] not in '"n':  # "n" of null
            new = self.raw[start:end][self._returned :]
            self._returned += len(new)
            return new
        if end is None or self._returned:
            return ""
        self._returned = end - start
        arguments = json.loads(self.raw[start:end]) or "{}"
        return str(arguments).encode("utf-8", "replace").decode()


def _end(text: str, start: int) -> int | None:
    """Where the JSON value that begins there ends; None where it is not complete."""
    try:
        return json.JSONDecoder().raw_decode(text, start)[1]
    except ValueError:
        return None


def _parsed(text: str, partial: Literal[True, "trailing-strings"]) -> Any:
    """The beginning of a JSON value, or NotCall. Half a surrogate pair becomes U+FFFD."""
    try:
        return from_json(text, allow_partial=partial)
    except ValueError:
        pass
    try:
        return from_json(_SURROGATE.sub(r"\\ufffd", text), allow_partial=partial)
    except ValueError:
        raise NotCall(text) from None


class Tagged:
    """Text, with calls between <tool_call> and </tool_call> (Hermes, Qwen and many others)."""

    OPENS, CLOSES = "<tool_call>", "</tool_call>"

    def __init__(self) -> None:
        self._held = ""
        self._after_call = False  # line breaks mean nothing there
        self._call: CallReader | None = None

    def push(self, text: str) -> Sequence[Piece]:
        found: list[Piece] = []
        held, self._held = self._held + text, ""
        while held:
            if self._after_call:
                held = held.lstrip("\n")
                self._after_call = not held
            elif self._call is None:
                before, mark, after = held.partition(self.OPENS)
                if not mark:
                    at = len(held) - held_back(held, self.OPENS, also="\n")
                    self._held = held[at:]
                    return [*found, *_text(held[:at])]
                found += _text(before.rstrip("\n"))
                self._call, held = CallReader(), after
            elif self._call.complete:
                _, mark, after = held.partition(self.CLOSES)
                if not mark:
                    self._held = held[len(held) - held_back(held, self.CLOSES) :]
                    return found
                self._call, self._after_call, held = None, True, after
            else:
                try:
                    found += self._call.push(held)
                    held = self._call.rest
                except NotCall:
                    held = "" if self._call.begun else self._call.raw
                    found += _text("" if self._call.begun else self.OPENS)
                    self._call = None
        return found

    def finish(self) -> Sequence[Piece]:
        call, self._call = self._call, None
        if call is None:
            return _text(self._held)
        return [] if call.begun else _text(self.OPENS + call.raw)


def _text(text: str) -> list[Piece]:
    return [Text(text)] if text else []


class Bare:
    """Nothing but calls, an object or a list of them; anything else is text. So answer Llama 3,
    Mistral (whose mark is a control token), and every model with a grammar for calls."""

    MARKS = ("<|python_tag|>", "[TOOL_CALLS]")

    def __init__(self) -> None:
        self._raw = ""  # until a call has begun
        self._state = "beginning"  # then "calls" or "text"
        self._called = False
        self._call: CallReader | None = None

    def push(self, text: str) -> Sequence[Piece]:
        if self._state == "text":
            return _text(text)
        if not self._called:
            self._raw += text
        if self._state == "beginning":
            rest = self._begins(self._raw.lstrip())
            if rest is None:
                return self.finish() if self._state == "text" else []
            self._state, text = "calls", rest
        found: list[Piece] = []
        while text:
            if self._call is None:
                _, brace, text = text.partition("{")
                if not brace:  # commas, brackets and space between calls
                    break
                self._call, text = CallReader(), brace + text
            try:
                found += self._call.push(text)
            except NotCall:
                if not self._called and not self._call.begun:
                    self._state = "text"
                    return self.finish()
                self._call = None
                break
            self._called = self._called or self._call.begun
            text = self._call.rest
            if self._call.complete:
                self._call = None
        return found

    def finish(self) -> Sequence[Piece]:
        raw, self._raw = self._raw, ""
        return [] if self._called else _text(raw)

    def _begins(self, text: str) -> str | None:
        """The text of the calls; None where they cannot begin here, or not yet."""
        for mark in self.MARKS:
            if text.startswith(mark):
                return text[len(mark) :]
            if mark.startswith(text):
                return None
        if text[0] == "{" or (text[0] == "[" and text[1:].lstrip().startswith("{")):
            return text
        if text[0] != "[" or text[1:].strip():
            self._state = "text"
        return None


class CallOrResponse:
    """An object that is a call, or has the answer as its "response": what the grammar for models
    without tools of their own allows."""

    def __init__(self) -> None:
        self._raw = ""
        self._returned = 0  # characters of the response
        self._calls: Bare | None = None

    def push(self, text: str) -> Sequence[Piece]:
        if self._calls is not None:
            return self._calls.push(text)
        self._raw += text
        value = _parsed(self._raw, "trailing-strings") if self._raw.strip() else {}
        if isinstance(value, list) or (value and "response" not in value):
            self._calls = Bare()
            return self._calls.push(self._raw)
        new = str(value.get("response", ""))[self._returned :]
        self._returned += len(new)
        return _text(new)

    def finish(self) -> Sequence[Piece]:
        return [] if self._calls is None else self._calls.finish()
