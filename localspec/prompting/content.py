"""Text that remembers which of its characters a caller wrote, through all that a template does.

A `<|end|>` of the template and one of a message must not look the same. Hence a caller's printable
ASCII characters are lone surrogates while they are rendered; lengths and positions stay. `Content`
acts as the text that it stands for. What nobody here foresaw keeps the marks: the safe way to
fail.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import wraps
from typing import Any, SupportsIndex

_ALPHABET = [code for code in range(0x21, 0x7F) if chr(code) not in '"\\']  # which JSON escapes
_TEXT, _ANSWER = 0xD800, 0xDC00
_MARK_TEXT = {code: _TEXT + code for code in _ALPHABET}
_MARK_ANSWER = {code: _ANSWER + code for code in _ALPHABET}
_UNMARK = {band + code: code for band in (_TEXT, _ANSWER) for code in _ALPHABET}
_MARKED = re.compile("[\ud821-\ud87e\udc21-\udc7e]")
_SURROGATE = re.compile("[\ud800-\udfff]")


class Content(str):
    __slots__ = ()

    def __str__(self) -> str:
        return self

    def __repr__(self) -> str:
        return marked(repr(plain(self)))

    def __iter__(self) -> Iterator[str]:
        return map(Content, str.__iter__(self))

    def __getitem__(self, place: SupportsIndex | slice) -> str:
        return Content(str.__getitem__(self, place))

    def __add__(self, other: str) -> str:
        return Content(str.__add__(self, other))

    def __radd__(self, other: str) -> str:
        return Content(str.__add__(other, self))

    def __mul__(self, times: SupportsIndex) -> str:
        return Content(str.__mul__(self, times))

    __rmul__ = __mul__

    def lstrip(self, chars: str | None = None, /) -> str:
        left = plain(self).lstrip(None if chars is None else plain(chars))
        return self[len(self) - len(left) :]

    def rstrip(self, chars: str | None = None, /) -> str:
        return self[: len(plain(self).rstrip(None if chars is None else plain(chars)))]

    def strip(self, chars: str | None = None, /) -> str:
        return self.lstrip(chars).rstrip(chars)

    def removeprefix(self, prefix: str, /) -> str:
        return self[len(prefix) :] if self.startswith(prefix) else self

    def removesuffix(self, suffix: str, /) -> str:
        return self[: len(self) - len(suffix)] if self.endswith(suffix) else self

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        if sep is None:  # white space has no marks
            return [Content(piece) for piece in str.split(self, None, maxsplit)]
        return self._cut(plain(self).split(plain(sep), maxsplit), len(sep))

    def rsplit(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        if sep is None:
            return [Content(piece) for piece in str.rsplit(self, None, maxsplit)]
        return self._cut(plain(self).rsplit(plain(sep), maxsplit), len(sep))

    def replace(self, old: str, new: str, count: SupportsIndex = -1, /) -> str:
        if not old:
            return marked(plain(self).replace("", plain(new), count))
        return Content(str.join(new, self.split(old, count)))

    def join(self, texts: Iterable[str], /) -> str:
        return Content(str.join(self, texts))

    def _cut(self, pieces: list[str], between: int) -> list[str]:
        found, start = [], 0
        for piece in pieces:
            found.append(self[start : start + len(piece)])
            start += len(piece) + between
        return found


def _of_plain(name: str) -> Callable[..., Any]:
    ask = getattr(str, name)

    @wraps(ask)
    def asked(self: Content, *args: Any) -> Any:
        return ask(plain(self), *(_deeply(plain, arg) for arg in args))

    return asked


def _cutting(name: str) -> Callable[..., Any]:
    cut = getattr(str, name)

    @wraps(cut)
    def pieces(self: Content, *args: Any) -> Any:
        found = cut(plain(self), *map(plain, args))
        return type(found)(self._cut(found, 0))

    return pieces


def _recased(name: str) -> Callable[[Content], str]:
    change = getattr(str, name)
    return wraps(change)(lambda self: marked(change(plain(self))))


_LOOKING = [name for name in dir(str) if name.startswith("is")]
_LOOKING += ["count", "find", "index", "rfind", "rindex", "startswith", "endswith", "encode"]
_LOOKING += ["__eq__", "__ne__", "__lt__", "__gt__", "__le__", "__ge__", "__hash__", "__contains__"]
_RECASED = ["lower", "upper", "capitalize", "title", "swapcase", "casefold"]
for _make, _names in (
    (_of_plain, _LOOKING),
    (_cutting, ["partition", "rpartition"]),
    (_recased, _RECASED),
):
    for _name in _names:
        setattr(Content, _name, _make(_name))
EXACT = frozenset({*vars(Content), "format", "format_map"})
"""Methods that keep the marks of each character; what others return is a caller's altogether."""


def marked(text: str, *, answer: bool = False) -> str:
    """A caller's text, or what the model once wrote (`answer`), in which tokens that are no control
    tokens (`<think>`, `<tool_call>`) may be themselves again."""
    if isinstance(text, Content):
        return text
    if not str.isascii(text) and _SURROGATE.search(text):
        text = text.encode("utf-8", "replace").decode()
    return Content(text.translate(_MARK_ANSWER if answer else _MARK_TEXT))


def all_marked(value: Any, *, answer: bool = False) -> Any:
    return _deeply(lambda text: marked(text, answer=answer), value)


def plain(text: Any) -> Any:
    """A text without marks; anything else as it is."""
    if not isinstance(text, str) or (str.isascii(text) and type(text) is str):
        return text
    return str.translate(text, _UNMARK)


def all_plain(value: Any) -> Any:
    return _deeply(plain, value)


def kept(value: Any) -> Any:
    if type(value) is str and not str.isascii(value) and _MARKED.search(value):
        return Content(value)
    return value


def has_mark(text: str, start: int, end: int, *, answers: bool) -> bool:
    """Whether a caller wrote some of a stretch, or with `answers` the model."""
    stretch = str.__getitem__(text, slice(start, end))
    found = _MARKED.findall(stretch)
    return bool(found) and (answers or min(map(ord, found)) < _ANSWER)


def _deeply(change: Callable[[Any], Any], value: Any) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {_deeply(change, key): _deeply(change, one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_deeply(change, one) for one in value)
    return value
