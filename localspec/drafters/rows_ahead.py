"""Rows of the draft model along a text that may go on as expected."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from localspec.decoding.sampling import Rows


class RowsAhead(NamedTuple):
    """Rows behind a text, and behind each token that was expected to follow.

    Attributes:
        rows: float32 [1 + len(expected), vocabulary].
        expected: the tokens.
    """

    rows: Rows
    expected: list[int]

    def behind(self, tokens: Sequence[int]) -> RowsAhead | None:
        """What is left once the text went on with `tokens`; None where it went on otherwise."""
        n = len(tokens)
        if n > len(self.expected) or self.expected[:n] != list(tokens):
            return None
        return RowsAhead(self.rows[n:], self.expected[n:])
