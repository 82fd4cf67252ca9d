"""A text without a part behind its beginning, as a draft model reads a long one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

SINKS = 4
"""Tokens at the beginning that stay."""
NEEDLE = 16
"""Tokens by which a place in a text is found again."""


class Excerpt(Sequence[int]):
    """The first SINKS tokens of a text, and those behind `left_out` more.

    Args:
        text: more than SINKS + left_out tokens.
    """

    __slots__ = ("_left_out", "_text")

    def __init__(self, text: Sequence[int], left_out: int) -> None:
        self._text = text
        self._left_out = left_out

    def __len__(self) -> int:
        return len(self._text) - self._left_out

    @overload
    def __getitem__(self, at: int) -> int: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[int]: ...

    def __getitem__(self, at: int | slice) -> int | Sequence[int]:
        if isinstance(at, slice):
            start, stop, _ = at.indices(len(self))
            first, behind = self._text[start : min(stop, SINKS)], max(start, SINKS)
            rest = self._text[behind + self._left_out : max(behind, stop) + self._left_out]
            return [*first, *rest] if start < SINKS else rest
        if not -len(self) <= at < len(self):
            raise IndexError(at)
        at %= len(self)
        return self._text[at if at < SINKS else at + self._left_out]


def left_out_of(text: Sequence[int], held: Sequence[int]) -> int:
    """How many tokens of a text a cache left out; 0 where it holds the beginning, or too little."""
    needle = list(held[SINKS : SINKS + NEEDLE])
    if not needle or list(held[:SINKS]) != list(text[:SINKS]):
        return 0
    behind = list(text[SINKS:])
    return next((n for n in range(len(behind)) if behind[n : n + len(needle)] == needle), 0)
