"""A target that answers passes over trees with the rows of plain, single-token ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from localspec.decoding.interfaces import PassRequest, PassResult
from localspec.decoding.sampling import Row
from localspec.decoding.tree import TokenTree
from localspec.verify.subject import Subject

_PLAIN, _TOKEN = 1.0, 0.001
"""Seconds that passes count as, so that `auto` drafts wherever there is something to."""


class PlainRows:
    """A `Target` whose every row is that of a plain pass after `base` and the same text, kept.

    So samples have the plain distribution to the last bit if the algorithm is right.

    Attributes:
        clock: seconds that its passes count as.
    """

    def __init__(self, subject: Subject, base: Sequence[int]) -> None:
        self._subject = subject
        self._base = list(base)
        self._rows: dict[tuple[int, ...], Row] = {}
        self.clock = 0.0
        subject.engine.clear()
        self.row(())

    def row(self, tail: Sequence[int]) -> Row:
        """After the base and so many tokens more; float32 [vocabulary]."""
        key = tuple(tail)
        found = self._rows.get(key)
        if found is None:
            if key and key[:-1] not in self._rows:
                self.row(key[:-1])  # so that the last pass is one over a single token
            text = [*self._base, *key]
            self._subject.target.rollback(text[:-1])
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
        """There is no cache."""

    def rollback(self, context: Sequence[int]) -> None:
        """Nothing."""


def seconds_of(tokens: int) -> float:
    return _PLAIN + _TOKEN * tokens
