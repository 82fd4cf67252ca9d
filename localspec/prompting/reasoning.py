"""Pieces of a model's answer (text, thoughts and tool calls), and readers that find them during
generation."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from localspec.prompting.detokenizer import (
    BEGINNINGS,
    CHANNEL,
    CLOSES,
    MUSE,
    OPENS,
    SOLAR,
    TAGGED,
    held_back,
    marks_in,
)
from localspec.prompting.marked_text import unmarked

_HEAD = "thought\n"
"""The name of Gemma 4's channel, the first line of a thought."""
_RESPONSE, _ANSWER = ("<response>", "</response>"), ("<answer>", "</answer>")
"""Granite 3.3's and Hunyuan's marks around the text outside thoughts."""


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


def reasons(template: str | None) -> bool:
    """Whether answers to prompts of this template may contain reasoning."""
    source = template or ""
    return bool(marks_in(source)) or any(mark in source for mark in BEGINNINGS)


def thought_marks(template: str) -> tuple[str, str]:
    """The marks that a template writes around a thought."""
    if TAGGED in template:  # which writes its marks in parts
        return BEGINNINGS[TAGGED][:2]
    marks = marks_in(template).items()
    pair = next((pair for pair in marks if pair[0] in template), (OPENS, CLOSES))
    return (f"{pair[0]}{_HEAD.strip()}", pair[1]) if pair[0] == "<|channel>" else pair


def reasoning_reader(
    template: str | None,
    inner: Reader,
    *,
    thinks: bool | None,
    calls: Sequence[str] = (),
    names: Iterable[str] = (),
) -> Reader:
    """Return a reader that finds thoughts and passes other text to `inner`. `thinks` is that of
    `Engine.stream`; `calls`: marks that may begin a call of a tool; `names`: those of the tools."""
    source = template or ""
    if CHANNEL in source or SOLAR in source or MUSE in source:  # Muse's messages have marked calls
        calls_found = not isinstance(inner, Plain) and MUSE not in source
        return ChannelReader(inner, calls=calls_found, names=names)
    marks = [mark for mark in calls if mark in source and mark[0] in "<["]
    if TAGGED in source:
        inner = ResponseReader(inner, (_RESPONSE[0], f"{_RESPONSE[1]}</message>"), open=True)
    elif wrapped := next((pair for pair in (_RESPONSE, _ANSWER) if pair[0] in source), None):
        inner = ResponseReader(inner, wrapped)
    return inner if thinks is None else ThoughtReader(inner, open=thinks, calls=marks)


def ends_thinking(text: str, last: Mapping[str, Any]) -> bool:
    """Whether a prompt with this last message ends within a thought."""
    said = str(last.get("content") or last.get("reasoning_content") or "")
    shown = str(unmarked(text))  # once, as it takes long
    marks = marks_in(shown)
    for opens, closes in marks.items():
        begun = shown[-len(said) - len(opens) - len(_HEAD) - 2 :]
        if last["role"] == "assistant" and begun.rfind(opens) > begun.rfind(closes):
            return True
    return shown.rstrip().endswith(tuple(marks))


def split_thoughts(answer: str) -> tuple[str, str]:
    """Split a complete or partial answer into its reasoning and its text."""
    begun = answer.lstrip()
    if not begun.startswith((OPENS, CHANNEL[: len(begun)] or CHANNEL)):
        return "", answer
    reader = ThoughtReader(Plain(), open=False) if begun.startswith(OPENS) else ChannelReader()
    pieces = [*reader.push(answer), *reader.finish()]
    thoughts = (piece.text for piece in pieces if isinstance(piece, Thought))
    return "".join(thoughts), "".join(as_text(piece) for piece in pieces)


class ThoughtReader:
    """Reads thoughts between <think> and </think> at the beginning of an answer. `open`: the prompt
    ended with <think>. An unclosed thought may be followed by calls, which begin with a mark of
    `calls`."""

    def __init__(self, inner: Reader, *, open: bool, calls: Sequence[str] = ()) -> None:
        self._inner, self._calls = inner, tuple(calls)
        self._held = ""
        self._state = "thinking" if open else "beginning"
        self._thought = ""  # since it was opened
        self._skipped = ""  # before an answer

    def push(self, text: str) -> Sequence[Piece]:
        if self._state == "answering":
            return self._inner.push(text)
        self._held += text
        found: list[Piece] = []
        if self._state == "beginning":
            self._held = self._held.lstrip(self._skipped)
            beginning = self._held.lstrip()
            if not beginning.startswith((OPENS, CLOSES)):
                begun = any(mark.startswith(beginning) for mark in (OPENS, CLOSES))
                return found if begun else self._begin_answer()
            self._held, self._state = beginning.removeprefix(OPENS), "thinking"
        if not self._thought:
            # Some models repeat the end of the prompt.
            self._held = re.sub(rf"^(?:\n|{OPENS}|{_HEAD})+", "", self._held)
            if any(mark.startswith(self._held) for mark in (OPENS, _HEAD)):
                return found
        ends = (one.start() for one in re.finditer(CLOSES, self._held))
        at = next((end for end in ends if not self._quotes(end)), -1)
        if at < 0 and self._held.endswith(CLOSES) and self._quotes(len(self._held) - len(CLOSES)):
            return found
        if at < 0:
            starts = [self._held.find(mark) for mark in self._calls if mark in self._held]
            marks = (CLOSES, *self._calls)
            held = max(held_back(self._held, mark, also="\n") for mark in marks)
            at = len(self._held[: min(starts)].rstrip("\n")) if starts else len(self._held) - held
            return self._take_thought(at)
        found += self._take_thought(len(self._held[:at].rstrip("\n")))
        rest = self._held.lstrip("\n").removeprefix(CLOSES)
        self._held, self._thought, self._state, self._skipped = "", "", "beginning", "\n"
        return [*found, *self.push(rest)]

    def finish(self) -> Sequence[Piece]:
        if self._state == "thinking":
            said: list[Piece] = []
            with suppress(ValueError):  # raised when a grammar does not match
                said = [*self._inner.push(self._thought + self._held), *self._inner.finish()]
            last = max((n for n, piece in enumerate(said) if isinstance(piece, Text)), default=-1)
            called = said[last + 1 :]
            marked = self._held.lstrip("\n").startswith(self._calls)
            return [*([] if called and marked else self._take_thought(len(self._held))), *called]
        return [*self._begin_answer(), *self._inner.finish()]

    def _quotes(self, at: int) -> bool:
        """Whether the mark at this position is code within a line, as far as is known."""
        line, rest = f"{self._thought}{self._held[:at]}", self._held[at + len(CLOSES) :]
        return line.rpartition("\n")[2].count("`") % 2 == 1 and rest[:1] in ("", "`")

    def _take_thought(self, length: int) -> list[Piece]:
        thought, self._held = self._held[:length], self._held[length:]
        self._thought += thought
        return [Thought(thought)] if thought else []

    def _begin_answer(self) -> Sequence[Piece]:
        self._state, held, self._held = "answering", self._held, ""
        return self._inner.push(held)


class ResponseReader:
    """Removes the marks around a response, if it begins with one, or the prompt did (`open`)."""

    def __init__(self, inner: Reader, marks: tuple[str, str], *, open: bool = False) -> None:
        self._inner, self._held, self._marks, self._open = inner, "", marks, open
        self._wrapped: bool | None = None

    def push(self, text: str) -> Sequence[Piece]:
        self._held += text
        opens, closes = self._marks
        if self._wrapped is None:
            begun = self._held.lstrip()
            if opens.startswith(begun.rstrip("\n")):
                return []
            self._wrapped = self._open or begun.startswith(opens)
            self._held = begun.removeprefix(opens).lstrip("\n") if self._wrapped else self._held
        at, whole = len(self._held), self._held.removesuffix(closes)
        if self._wrapped:
            closed = len(whole) < at
            at = len(whole.rstrip("\n")) if closed else at - held_back(whole, closes, also="\n")
        ready, self._held = self._held[:at], self._held[at:]
        return self._inner.push(ready)

    def finish(self) -> Sequence[Piece]:
        rest = self._held if self._held.strip() not in (_RESPONSE[1], *self._marks) else ""
        return [*self._inner.push(rest), *self._inner.finish()]


class ChannelReader:
    """Reads messages of gpt-oss (openai/harmony, docs/format.md), Solar and Muse in that format.

    The channel "analysis" is thought, and a message to a function is a call (without `calls`,
    text). All other messages, including those to "assistant", are text and read by `inner`.
    `names`: functions, whose names may have any characters."""

    _HEADERS = ("<|start|>", "<|channel|>", "<|message|>", "to=")
    _ENDS = ("<|end|>", "<|call|>", "<|return|>", "<|start|>")

    def __init__(
        self, inner: Reader | None = None, *, calls: bool = True, names: Iterable[str] = ()
    ) -> None:
        self._held, self._inner, self._calls = "", inner or Plain(), calls
        known = "|".join(map(re.escape, sorted(names, key=len, reverse=True))) or "(?!)"
        self._called = re.compile(
            rf"to=(?:functions\.|(?!assistant[\s<]))((?:{known})(?=[\s<])|[^\s<]+)"
        )
        self._piece: Callable[[str], Piece] | None = None  # None within a header
        self._said = False  # whether a call has arguments

    def push(self, text: str) -> Sequence[Piece]:
        self._held += text
        found: list[Piece] = []
        while self._held:
            if self._piece is None:
                header, mark, rest = self._held.partition("<|message|>")
                begun = f"{header}{mark}".lstrip()
                known = any(o.startswith(begun) or begun.startswith(o) for o in self._HEADERS)
                if known and not mark:
                    break
                self._piece = Text
                if not known:  # such as text that follows a grammar
                    continue
                self._held = rest
                function = self._called.search(header + mark)
                if function and self._calls:
                    self._piece, self._said = CallArguments, False
                    found.append(CallBegins(function[1]))
                elif "analysis" in header:
                    self._piece = Thought
                continue
            ends = [(self._held.find(mark), mark) for mark in self._ENDS if mark in self._held]
            held = max(held_back(self._held, mark) for mark in self._ENDS)
            at, mark = min(ends, default=(len(self._held) - held, ""))
            found += self._read_body(self._held[:at])
            self._held = self._held[at + len(mark.removeprefix("<|start|>")) :]
            if not mark:
                break
            if self._piece is CallArguments and not self._said:
                found.append(CallArguments("{}"))
            found += self._inner.finish()  # to keep the order
            self._piece = None
        return found

    def finish(self) -> Sequence[Piece]:
        if self._piece is None:
            begun = self._held.strip()
            self._piece, self._held = Text, "" if begun.startswith("<|") else self._held
        return [*self._read_body(self._held), *self._inner.finish()]

    def _read_body(self, text: str) -> Sequence[Piece]:
        if self._piece in (None, Text):
            return self._inner.push(text)
        self._said = self._said or bool(text.strip())
        return [self._piece(text)] if text else []
