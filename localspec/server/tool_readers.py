"""Reader of tool calls in a model's text, in the formats of `localspec.server.call_formats`."""

import re
from bisect import bisect
from collections.abc import Iterable, Sequence
from contextlib import suppress

from localspec.prompting.detokenizer import CLOSES, OPENS, held_back
from localspec.prompting.reasoning import CallArguments, CallBegins, Piece, Plain, Text, Thought
from localspec.server.call_formats import (
    CALL_MARKS,
    END_MARKS,
    Format,
    Parsed,
    Schemas,
    ends_of,
    formats,
    read_quoted,
)
from localspec.server.near_json import missing_end, parse_partial

_BEGINS = re.compile("|".join(map(re.escape, CALL_MARKS)))
_CODE = re.compile(r"(?m)^[^`\n]*(?:`[^`\n]*`[^`\n]*)*`\Z")  # before a mark that is quoted
_UNMARKED = ("[", "<func", "<invoke", "<｜", "<atem:", "<step", "<call")  # calls without a mark
_LONGEST = 250
"""Limit of characters before a call's name or arguments, without the name."""
_BROKEN = (ValueError, RecursionError)  # small models may open brackets endlessly
_LONG = 500  # characters without a name, if the arguments come first
_LINE = re.compile(
    r"""(?<!\s)[^\S\n]*(\n)\s*(?:\[\s*)?(?:\Z|\{\s*(?:\Z|"\w*"?\s*\Z"""
    r"""|("(?:name|type|function|tool|tool_calls?|tool_name)"\s*:)))"""
)
"""A line that begins, or may begin, with an unmarked call, after the end of the line before."""
RESPONSE = r'\s*\{\s*"response"\s*:\s*"'
"""The beginning of an answer that a grammar enforces and is not a call."""
_RESPONSE = re.compile(rf"""{RESPONSE}((?:[^"\\\0-\x1f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{{4}})*"?)""")
_NAMESPACE = re.compile(r"\A|[.:]")
"""The end of a namespace that models put before a tool's name, such as "functions."."""
_UNCLOSED = re.compile(r"(?s)(</arg_key>\s*(?:(?!</arg_value>).)*?)(\n?</?tool_call>)")


def mark_of(name: str) -> str:
    """The text before a custom tool's input that a grammar constrains."""
    return f"<custom:{name}>\n"


class CallReader:
    """Reads text, calls, and thoughts between calls. A call follows a mark, the beginning, or
    another call. The valid JSON of a broken call stays a call and the rest is text, wherever pieces
    end. `only`: a grammar allows only calls, so incomplete ones are dropped. `single`: calls after
    the first are dropped. `begun`: the mark at the end of the prompt. `bare`: custom tools whose
    input, after its mark, may be the whole answer; `responds`: an object may have the answer as its
    "response", if the template does not support tools."""

    def __init__(
        self,
        tools: Schemas,
        *,
        only: bool = False,
        single: bool = False,
        begun: str = "",
        bare: Iterable[str] = (),
        responds: bool = False,
    ) -> None:
        self._tools = tools
        self._only, self._single, self._call_count = only, single, 0
        self._formats = formats(tuple(tools))
        self._begun, self._bare = begun, {mark_of(name): name for name in bare}
        self._responds, self._returned = responds, 0  # characters of the response
        self._held, self._line, self._due = "", "", 0
        self._step = self._begin
        self._reader: Format | None = None
        self._emitted: list[int] = []  # characters of each call's arguments sent so far

    def push(self, text: str) -> Sequence[Piece]:
        self._held += text
        # Parsing long arguments with every token would take quadratic time.
        return self._read_pieces() if len(self._held) >= self._due else []

    def _read_pieces(self) -> list[Piece]:
        found: list[Piece] = []
        continues = True
        while continues and self._held:
            pieces, continues = self._step()
            found += pieces
        long = self._step == self._in_call and len(self._held) > _LONG
        self._due = len(self._held) * 17 // 16 if self._emitted or long else 0
        return found

    def finish(self) -> Sequence[Piece]:
        self._held += CLOSES if self._held.startswith(OPENS) else ""
        found = self._read_pieces()
        if self._step in (self._begin, self._in_input, self._in_response):
            return found
        if calling := self._step == self._in_call:
            held = _UNCLOSED.sub(r"\1</arg_value>\2", self._held)
            for end in ends_of(self._reader, held):
                with suppress(*_BROKEN):
                    calls, at = self._parse_call(held + end)
                    if at or (calls and end != "</tool_call>"):
                        self._held = held + end
                        found += self._read_pieces()
                        break
        cut = calling and (self._call_count or self._reader is read_quoted)
        no_text = self._only or cut or self._step == self._after_call
        rest, self._held, self._emitted, self._step = self._held, "", [], self._in_call
        return [*found, *Plain().push("" if no_text else rest)]

    def _begin(self) -> tuple[Sequence[Piece], bool]:
        for mark, name in self._bare.items():
            if self._held.startswith(mark):
                self._held, self._step = self._held[len(mark) :], self._in_input
                return [CallBegins(name, custom=True)], True
        if any(mark.startswith(self._held) for mark in self._bare):
            return [], False
        self._step = self._in_response if self._responds else self._in_call
        self._held = self._begun + self._held
        return [], True

    def _in_input(self) -> tuple[Sequence[Piece], bool]:
        text, self._held = self._held, ""
        return [CallArguments(text)], False

    def _in_response(self) -> tuple[Sequence[Piece], bool]:
        found = _RESPONSE.match(self._held)
        if found is None:
            begins = '{"response":"'.startswith("".join(self._held.split()))
            self._step = self._in_response if begins else self._in_call
            return [], not begins
        value = str(parse_partial(f'"{found[1]}', "trailing-strings"))
        new, self._returned = value[self._returned :], len(value)
        return [Text(new)] if new else [], False

    def _in_text(self) -> tuple[Sequence[Piece], bool]:
        held = self._held
        line = _LINE.search(held)
        begins = (one.start() for one in _BEGINS.finditer(held))
        plain = (at for at in begins if not _CODE.search(self._line + held[:at]))
        called = line.start(1) if line is not None and line[2] else None
        starts = [at for at in (next(plain, None), called) if at is not None]
        if starts:
            self._step = self._in_call
            at = len(held[: min(starts)].rstrip("\n"))
        else:
            marks = (*(mark for mark in CALL_MARKS if mark[0] in held), "\n")
            at = len(held) - max(held_back(held, mark, also="\n") for mark in marks)
            at = at if line is None else min(at, line.start(1))
        self._held, self._line = held[at:], (self._line + held[:at]).rpartition("\n")[2]
        return Plain().push(held[:at]), bool(starts)

    def _in_call(self) -> tuple[Sequence[Piece], bool]:
        try:
            calls, end = self._parse_call(self._held)
        except _BROKEN:  # what was a call before stays one, wherever pieces of text end
            end = bisect(range(len(self._held)), False, key=self._breaks) - 1
            calls = self._parse_call(self._held[:end])[0]
            calls = [(name, said + missing_end(said)) for name, said in calls]
            if not calls:
                rest, self._step = self._held.lstrip(), self._in_text
                mark = next((one for one in CALL_MARKS if rest.startswith(one)), "")
                text = self._held.removesuffix(rest) + mark
                self._held = rest.removeprefix(mark)
                return Plain().push(text), True
        found: list[Piece] = []
        for number, (name, arguments) in enumerate(calls):
            ends = (name.strip()[one.end() :] for one in _NAMESPACE.finditer(name.strip()))
            known, pieces = next((one for one in ends if one in self._tools), name), list[Piece]()
            if number == len(self._emitted):
                self._emitted.append(0)
                self._call_count += 1
                pieces.append(CallBegins(known))
            if new := arguments[self._emitted[number] :]:
                self._emitted[number] = len(arguments)
                pieces.append(CallArguments(new))
            if not self._single or self._call_count == 1:
                found += pieces
        if end is not None:
            self._held, self._emitted, self._step = self._held[end:], [], self._after_call
        return found, end is not None

    def _breaks(self, length: int) -> bool:
        with suppress(*_BROKEN):
            self._parse_call(self._held[:length])
            return False
        return True

    def _parse_call(self, held: str) -> Parsed:
        begun = held.lstrip()
        for header, read in self._formats:
            if found := header.match(held, len(held) - len(begun)):
                self._reader = read
                return read(held, found, self._tools)
        bare = (f"{name}{after}" for name in self._tools for after in ("(", ".call("))
        marks = (*CALL_MARKS, *_UNMARKED, *bare)
        if not any(one.startswith(begun) or begun.startswith(one) for one in marks):
            raise ValueError(held)
        if len(begun) > _LONGEST + max(map(len, self._tools), default=0):
            raise ValueError(held)
        return [], None

    def _after_call(self) -> tuple[Sequence[Piece], bool]:
        self._held = self._held.lstrip(" \t\r\n,;]}")
        if any(mark.startswith(self._held) for mark in (*CALL_MARKS, *END_MARKS, OPENS)):
            return [], False
        if self._held.startswith(OPENS):
            thought, closed, rest = self._held.removeprefix(OPENS).partition(CLOSES)
            self._held = rest if closed else self._held
            return [Thought(thought.strip("\n"))] if closed else [], bool(closed)
        for mark in () if self._held.startswith(CALL_MARKS) else END_MARKS:
            if self._held.startswith(mark):
                self._held = self._held[len(mark) :]
                return [], True
        self._step = self._in_call
        return [], True
