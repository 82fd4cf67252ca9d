"""Rows of the draft model: along a text that may go on as expected, and what one of them says."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from localspec.decoding.acceptance import Rows
from localspec.decoding.sampling import Row
from localspec.drafters.draft_model import Speaker


class Reading:
    """Rows of one pass of the draft model along a text that may go on as expected."""

    __slots__ = ("_at", "_known", "_rows", "_start")

    def __init__(self, rows: Rows | None = None, known: Sequence[int] = (), start: int = 0) -> None:
        """`rows` follow the text of `start` tokens, and each of the `known` tokens behind it."""
        self._rows = rows
        self._known = known
        self._start = start
        self._at = start

    def follows(self, text: Sequence[int]) -> bool:
        """Whether there is a row behind this text, which grew by one token since the last row."""
        at = len(text)
        if self._rows is None or at > len(self._known):
            return False
        if at > self._start and text[-1] != self._known[at - 1]:
            self._rows = None
            return False
        self._at = at
        return True

    def starts(self, text: Sequence[int]) -> bool:
        """Whether there is a row behind this text, compared in full; `row` is that one."""
        at = len(text)
        if self._rows is None or not self._start <= at < self._start + len(self._rows):
            return False
        if list(self._known[:at]) != list(text):
            return False
        self._at = at
        return True

    def row(self) -> Row:
        """That row."""
        assert self._rows is not None
        row: Row = self._rows[self._at - self._start]
        return row


class Look:
    """What a row of the draft model says before anything is drawn from it.

    Attributes:
        tokens: the most probable tokens that may come, best first.
        probs: their probabilities at temperature 1, before any truncation.
        entropy: of the row, in nats.
    """

    __slots__ = ("_weights", "_whole", "entropy", "probs", "tokens")

    def __init__(self, row: Row, speaker: Speaker, most: int) -> None:
        shifted = row - row.max()
        weights = np.exp(shifted)
        whole = float(np.add.reduce(weights))
        self._weights, self._whole = weights, whole
        # A row with -inf in it (a banned token, a padded vocabulary) has 0 · -inf there.
        inner = float(np.dot(weights, np.maximum(shifted, -80.0)))
        self.entropy = float(np.log(whole)) - inner / whole
        self.tokens = speaker.top(row, most)
        self.probs = [float(weights[token]) / whole for token in self.tokens]

    def prob(self, token: int) -> float:
        """Probability of any token."""
        return float(self._weights[token]) / self._whole
