"""Calls of tools, found in what a model writes."""

from __future__ import annotations

import json
from collections.abc import Sequence

from localspec.server.json_pieces import NotJson, ObjectReader, StringDecoder
from localspec.server.pieces import CallArguments, CallBegins, Piece, Text, ending

ARGUMENTS = ("arguments", "parameters")


class CallReader:
    """Reads one call: an object with a name and arguments, in whatever order.

    Arguments are told as they come, once the name is known.

    Attributes:
        raw: everything read, for when it was no call after all.
        begun: whether a piece was told.
    """

    def __init__(self) -> None:
        self.raw = ""
        self.begun = False
        self._object = ObjectReader()
        self._name = ""
        self._named = False
        self._waiting = ""  # arguments that came before the name
        self._argued = False
        self._encoded: str | None = None  # arguments that are a string with JSON in it, or null

    @property
    def complete(self) -> bool:
        return self._object.complete

    def read(self, char: str) -> list[Piece]:
        """One more character.

        Raises:
            NotJson: it is no call.
        """
        self.raw += char
        member = self._object.read(char)
        found: list[Piece] = []
        if member is not None and member.key == "name":
            self._name += member.text
            if member.complete:
                found += self._begin()
        elif member is not None and member.key in ARGUMENTS:
            found += self._arguments(member.text, complete=member.complete)
        if self.complete and not self._named:
            raise NotJson("a call without a name")
        if self.complete and not self._argued:
            found.append(CallArguments("{}"))
        return found

    def _begin(self) -> list[Piece]:
        name = _loads(self._name)
        if not isinstance(name, str) or self._named:
            raise NotJson(self._name)
        self._named = self.begun = True
        found: list[Piece] = [CallBegins(name)]
        if self._waiting:
            found.append(CallArguments(self._waiting))
        return found

    def _arguments(self, text: str, *, complete: bool) -> list[Piece]:
        if not self._argued and text in ('"', "n"):
            self._encoded = ""
        self._argued = True
        if self._encoded is not None:
            self._encoded += text
            if not complete:
                return []
            text = str(_loads(self._encoded) or "{}")
        if self._named:
            return [CallArguments(text)]
        self._waiting += text
        return []


def _loads(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        raise NotJson(text) from None


class Tagged:
    """Text, with calls between <tool_call> and </tool_call> (Hermes, Qwen and many others)."""

    OPENS, CLOSES = "<tool_call>", "</tool_call>"

    def __init__(self) -> None:
        self._held = ""
        self._behind = False  # a call, where line breaks mean nothing
        self._call: CallReader | None = None

    def push(self, text: str) -> Sequence[Piece]:
        found: list[Piece] = []
        self._held += text
        while self._held:
            if self._behind:
                self._held = self._held.lstrip("\n")
                self._behind = not self._held
            elif self._call is None:
                at = self._held.find(self.OPENS)
                if at < 0:
                    keep = ending(self._held, self.OPENS, also="\n")
                    found += self._text(len(self._held) - keep)
                    break
                found += self._text(at, strip=True)
                self._held = self._held[len(self.OPENS) :]
                self._call = CallReader()
            elif self._call.complete:
                at = self._held.find(self.CLOSES)
                if at < 0:
                    self._held = self._held[len(self._held) - ending(self._held, self.CLOSES) :]
                    break
                self._held = self._held[at + len(self.CLOSES) :]
                self._call, self._behind = None, True
            else:
                found += self._read_call()
        return found

    def finish(self) -> Sequence[Piece]:
        call, self._call = self._call, None
        held, self._held = self._held, ""
        if call is not None and not call.complete and not call.begun:
            held = self.OPENS + call.raw + held
        elif call is not None:
            held = ""
        return [Text(held)] if held else []

    def _text(self, length: int, *, strip: bool = False) -> list[Piece]:
        text, self._held = self._held[:length], self._held[length:]
        text = text.rstrip("\n") if strip else text
        return [Text(text)] if text else []

    def _read_call(self) -> list[Piece]:
        assert self._call is not None
        found: list[Piece] = []
        while self._held and not self._call.complete:
            char, self._held = self._held[0], self._held[1:]
            try:
                found += self._call.read(char)
            except NotJson:
                if not self._call.begun:
                    found.append(Text(self.OPENS + self._call.raw))
                self._call = None
                break
        return found


class Bare:
    """Nothing but calls, an object or a list of them; anything else is text.

    So answer Llama 3, Mistral (whose mark is a control token), and whoever is held to it by a
    grammar.
    """

    MARKS = ("<|python_tag|>", "[TOOL_CALLS]")

    def __init__(self) -> None:
        self._held = ""
        self._state = "beginning"
        self._call: CallReader | None = None

    def push(self, text: str) -> Sequence[Piece]:
        if self._state == "text":
            return [Text(text)] if text else []
        self._held += text
        if self._state == "beginning" and not self._begin():
            return self._all_text() if self._state == "text" else []
        found: list[Piece] = []
        while self._held:
            char, self._held = self._held[0], self._held[1:]
            if self._call is None:
                if char == "{":
                    self._call = CallReader()
                else:
                    continue  # commas, brackets and space between calls
            try:
                found += self._call.read(char)
            except NotJson:
                if not self._call.begun and self._state == "first":
                    self._held = self._call.raw + self._held
                    return [*found, *self._all_text()]
                self._call = None
                continue
            if self._call.complete:
                self._call, self._state = None, "calls"
        return found

    def finish(self) -> Sequence[Piece]:
        call = self._call
        if self._state == "first" and call is not None and not call.begun:
            self._held = call.raw + self._held
            return self._all_text()
        return self._all_text() if self._state == "beginning" else []

    def _begin(self) -> bool:
        """Whether calls begin here; decides, where it can be decided."""
        beginning = self._held.lstrip()
        for mark in self.MARKS:
            if beginning.startswith(mark):
                self._held, self._state = beginning[len(mark) :], "first"
                return True
            if mark.startswith(beginning):
                return False
        if beginning[0] == "[" and not beginning[1:].strip():
            return False
        calls = beginning[0] == "{" or (
            beginning[0] == "[" and beginning[1:].lstrip().startswith("{")
        )
        self._state = "first" if calls else "text"
        return calls

    def _all_text(self) -> list[Piece]:
        self._state, held, self._held = "text", self._held, ""
        return [Text(held)] if held else []


class CallOrResponse:
    """An object that is a call, or has the answer as its "response": what the grammar for models
    without tools of their own allows."""

    def __init__(self) -> None:
        self._object = ObjectReader()
        self._response = StringDecoder()
        self._calls: Bare | None = None
        self._raw = ""
        self._decided = False

    def push(self, text: str) -> Sequence[Piece]:
        if self._calls is not None:
            return self._calls.push(text)
        said: list[str] = []
        for at, char in enumerate(text):
            if not self._decided:
                self._raw += char
                if char == "[":
                    return self._call(text[at + 1 :])
            try:
                member = self._object.read(char)
            except NotJson:
                continue
            if member is None:
                continue
            if not self._decided and member.key != "response":
                return self._call(text[at + 1 :])
            self._decided = True
            if member.key == "response":
                said.append(self._response.push(member.text))
        return [Text("".join(said))] if any(said) else []

    def finish(self) -> Sequence[Piece]:
        return [] if self._calls is None else self._calls.finish()

    def _call(self, rest: str) -> Sequence[Piece]:
        self._calls = Bare()
        return self._calls.push(self._raw + rest)
