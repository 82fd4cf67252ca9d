"""Text that remembers which of its characters a caller wrote, through a template's operations.

A `<|end|>` of the template must differ from one in a message. So a caller's printable ASCII
characters become lone surrogates during rendering; lengths and positions stay. `MarkedText`
behaves like the plain text. Operations that are not handled here keep the marks, which is the safe
way to fail.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from typing import Any, SupportsIndex

_ALPHABET = [code for code in range(0x21, 0x7F) if chr(code) not in '"\\']  # which JSON escapes
_TEXT, _ANSWER = 0xD800, 0xDC00
_MARK_TEXT = {code: _TEXT + code for code in _ALPHABET}
_MARK_ANSWER = {code: _ANSWER + code for code in _ALPHABET}
_UNMARK = {band + code: code for band in (_TEXT, _ANSWER) for code in _ALPHABET}
_MARKED = re.compile("[\ud821-\ud87e\udc21-\udc7e]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_STRETCH = 1 << 14


class MarkedText(str):
    __slots__ = ()

    def __str__(self) -> str:
        return self

    def __repr__(self) -> str:
        return mark_text(repr(unmarked(self)))

    def __iter__(self) -> Iterator[str]:
        return map(MarkedText, str.__iter__(self))

    def __radd__(self, other: str) -> str:
        return MarkedText(str.__add__(other, self))

    def lower(self) -> str:
        return mark_text(unmarked(self).lower())

    def strip(self, chars: str | None = None, /) -> str:
        return self.lstrip(chars).rstrip(chars)

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return self._cut(str.split, sep, maxsplit)

    def rsplit(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return self._cut(str.rsplit, sep, maxsplit)

    def replace(self, old: str, new: str, count: SupportsIndex = -1, /) -> str:
        if not old:
            return mark_text(unmarked(self).replace("", unmarked(new), count))
        return MarkedText(str.join(new, self.split(old, count)))

    def _cut(self, cut: Callable[..., list[str]], sep: str | None, most: Any) -> list[str]:
        if sep is None:  # white space has no marks
            return [MarkedText(piece) for piece in cut(self, None, most)]
        found, start = [], 0
        for piece in cut(unmarked(self), unmarked(sep), most):
            found.append(self[start : start + len(piece)])
            start += len(piece) + len(sep)
        return found


def _method(name: str, result: Callable[[MarkedText, Any], Any]) -> Callable[..., Any]:
    """str's method, applied to plain text; `result` converts what it returns."""
    original = getattr(str, name)

    @wraps(original)
    def method(self: MarkedText, *args: Any) -> Any:
        return result(self, original(unmarked(self), *(_map_strings(unmarked, x) for x in args)))

    return method


def _with_marks(name: str) -> Callable[..., Any]:
    """str's method, which also keeps the marks of its arguments."""
    original = getattr(str, name)
    return wraps(original)(lambda self, *args: MarkedText(original(self, *args)))


_QUERIES = [name for name in dir(str) if name.startswith("is")]
_QUERIES += ["count", "find", "index", "rfind", "rindex", "startswith", "endswith", "encode"]
_QUERIES += ["__eq__", "__ne__", "__lt__", "__gt__", "__le__", "__ge__", "__hash__", "__contains__"]
for _name in _QUERIES:
    setattr(MarkedText, _name, _method(_name, lambda _, answer: answer))
for _name in ("lstrip", "removeprefix"):
    setattr(MarkedText, _name, _method(_name, lambda text, end: text[len(text) - len(end) :]))
for _name in ("rstrip", "removesuffix"):
    setattr(MarkedText, _name, _method(_name, lambda text, begin: text[: len(begin)]))
for _name in ("__getitem__", "__add__", "__mul__", "__rmul__", "join"):
    setattr(MarkedText, _name, _with_marks(_name))
EXACT = frozenset({*vars(MarkedText), "format", "format_map"})
"""Methods that keep the marks of each character; results of others are marked as a whole."""


def mark_text(text: str, *, answer: bool = False) -> str:
    """Mark a caller's text, or with `answer` one that the model generated: there, special tokens
    that are not control tokens (`<think>`, `<tool_call>`) are read as tokens again."""
    if isinstance(text, MarkedText):
        return text
    if not str.isascii(text) and _SURROGATE.search(text):
        text = text.encode("utf-8", "replace").decode()
    return MarkedText(_translate(text, _MARK_ANSWER if answer else _MARK_TEXT))


def mark_all(value: Any, *, answer: bool = False) -> Any:
    return _map_strings(lambda text: mark_text(text, answer=answer), value)


def unmarked(text: Any) -> Any:
    """Return a text without marks; other values unchanged."""
    if not isinstance(text, str) or (str.isascii(text) and type(text) is str):
        return text
    return _translate(text, _UNMARK)


def _translate(text: str, table: Mapping[int, int]) -> str:
    """Translate in stretches, between which other threads run."""
    starts = range(0, len(text), _STRETCH)
    return "".join(
        [str.__getitem__(text, slice(at, at + _STRETCH)).translate(table) for at in starts]
    )


def unmark_all(value: Any) -> Any:
    return _map_strings(unmarked, value)


def keep_marks(value: Any) -> Any:
    if type(value) is str and not str.isascii(value) and _MARKED.search(value):
        return MarkedText(value)
    return value


def has_mark(text: str, start: int, end: int, *, answers: bool) -> bool:
    """Whether a caller (with `answers`, also the model) wrote any character of a range."""
    stretch = str.__getitem__(text, slice(start, end))
    found = _MARKED.findall(stretch)
    return bool(found) and (answers or min(map(ord, found)) < _ANSWER)


def _map_strings(change: Callable[[Any], Any], value: Any) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {_map_strings(change, key): _map_strings(change, one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_map_strings(change, one) for one in value)
    return value
