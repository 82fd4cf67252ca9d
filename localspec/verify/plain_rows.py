"""A target that answers passes over trees with the rows of plain, single-token ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from localspec.decoding.interfaces import PassRequest, PassResult
from localspec.decoding.sampling import Row
from localspec.decoding.tree import TokenTree
from localspec.verify.subject import Subject

_PLAIN, _TOKEN = 1.0, 0.001
"""Seconds that passes are said to take: with a pass over several tokens as cheap, and any draft
model's pass cheaper, `auto` drafts wherever there is something to draft."""


class PlainRows:
    """Stands at the seam; a `Target`.

    Every row is what a plain pass says behind the same text, read once and kept. So what is
    sampled from them has the plain distribution to the last bit if the algorithm is right, and a
    sample may be as large as it takes to see a small bias: rounding does not blur it, and passes
    are paid for once.

    Args:
        base: the text behind which is sampled.

    Attributes:
        clock: seconds that its passes were said to take.
    """

    def __init__(self, subject: Subject, base: Sequence[int]) -> None:
        self._subject = subject
        self._base = list(base)
        self._rows: dict[tuple[int, ...], Row] = {}
        self.clock = 0.0
        subject.engine.clear()
        self.row(())

    def row(self, tail: Sequence[int]) -> Row:
        """Behind the base and so many tokens more; float32 [vocabulary]."""
        key = tuple(tail)
        found = self._rows.get(key)
        if found is None:
            if key and key[:-1] not in self._rows:
                self.row(key[:-1])  # so that the last pass is one over a single token
            target, text = self._subject.target, [*self._base, *key]
            target.rollback(text[:-1])
            found = self._rows[key] = np.array(self._subject.row(text))
        return found

    def forward(self, request: PassRequest) -> PassResult:
        tail, tree = tuple(request.context[len(self._base) :]), request.tree
        rows = [self.row(tail)]
        rows += [self.row((*tail, *tree.path_tokens(node))) for node in range(len(tree))]
        seconds = seconds_of(len(rows))
        self.clock += seconds
        return PassResult(np.stack(rows), seconds)

    def commit(self, tree: TokenTree, path: Sequence[int]) -> None:
        """Nothing: no cache is behind the rows."""

    def rollback(self, context: Sequence[int]) -> None:
        """Nothing."""


def seconds_of(tokens: int) -> float:
    """What a pass over so many is said to take."""
    return _PLAIN + _TOKEN * tokens
