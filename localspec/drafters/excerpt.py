"""A text without a part behind its beginning, as a draft model reads a long one."""

from __future__ import annotations

from collections.abc import Sequence

SINKS = 4
"""Tokens at the beginning that stay."""
NEEDLE = 16
"""Tokens by which a place in a text is found again."""


def excerpt(text: Sequence[int], left_out: int) -> Sequence[int]:
    """The first SINKS tokens of a text, and those behind `left_out` more."""
    return [*text[:SINKS], *text[SINKS + left_out :]] if left_out else text


def left_out_of(text: Sequence[int], held: Sequence[int]) -> int:
    """How many tokens of a text a cache left out; 0 where it holds the beginning, or too little."""
    needle = list(held[SINKS : SINKS + NEEDLE])
    if not needle or list(held[:SINKS]) != list(text[:SINKS]):
        return 0
    behind = list(text[SINKS:])
    return next((n for n in range(len(behind)) if behind[n : n + len(needle)] == needle), 0)
