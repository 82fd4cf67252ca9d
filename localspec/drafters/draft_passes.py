"""The passes of a draft model over one draft: which rows are known, and how more are read.

A chain is appended to the cache and cut off again where it turns out otherwise, which every model
can do. A tree grows behind the committed text, level by level, several candidates to a pass, and
nothing in it is read twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from localspec.decoding.auto_sources import Growing
from localspec.decoding.sampling import Row, Rows
from localspec.decoding.tree import ROOT
from localspec.drafters.draft_model import DraftModel
from localspec.drafters.rows_ahead import RowsAhead


class DraftPasses(Protocol):
    """Rows behind the candidates of one draft."""

    def knows(self, growing: Growing, node: int) -> bool:
        """Whether the row behind a candidate is there already."""
        ...

    def read(self, growing: Growing, nodes: Sequence[int]) -> None:
        """One pass for the rows behind these candidates, whose parents were read before. Without
        room for some of them their rows stay unknown."""
        ...

    def row(self, node: int) -> Row:
        """The row behind a candidate that is known or was read last."""
        ...


class ChainPasses:
    """Of a draft that is one branch.

    Args:
        ahead: rows that are known already.
    """

    def __init__(self, model: DraftModel, ahead: RowsAhead | None = None) -> None:
        self._model = model
        self._ahead = ahead
        self._at = ROOT  # the candidate that `_ahead` begins behind

    def knows(self, growing: Growing, node: int) -> bool:
        if self._ahead is None or node == self._at:
            return self._ahead is not None
        if growing.parent(node) != self._at:
            return False
        ahead = self._ahead.behind((growing.token(node),))
        if ahead is None:
            return False
        self._ahead, self._at = ahead, node
        return True

    def read(self, growing: Growing, nodes: Sequence[int]) -> None:
        (node,) = nodes
        model, path = self._model, growing.path(node)
        context, cache = model.to_read(growing.session.context), model.cache
        cache.truncate(min(len(cache.tokens), len(context) + len(path) - 1))
        held = len(cache.tokens)
        unread = [*context[held:], *path[max(0, held - len(context)) :]]
        size = len(unread)
        primes = _primes(model, growing, node, size, len(path))
        rows = model.read([*unread, *primes], 1 + len(primes))
        if not primes:
            cache.checkpoint()
        growing.read(size + len(primes))
        self._ahead, self._at = RowsAhead(rows, primes), node

    def row(self, node: int) -> Row:
        assert self._ahead is not None
        assert node == self._at
        row: Row = self._ahead.rows[0]
        return row


class TreePasses:
    """Of a draft that may branch."""

    def __init__(self, model: DraftModel) -> None:
        self._model = model
        self._grown: dict[int, int] = {ROOT: ROOT}  # nodes of the model's tree, by candidate
        self._rows: dict[int, Row] = {}
        self._primed: dict[int, tuple[Rows, list[int], int]] = {}
        self._continued: set[int] = set()
        self._leaves = 1

    def knows(self, growing: Growing, node: int) -> bool:
        if node in self._rows:
            return True
        if node == ROOT or not self._primed:
            return False
        primed = self._primed.get(growing.parent(node))
        if primed is None:
            return False
        # The parent's pass read on with what was expected behind it.
        rows, expected, grown = primed
        if not expected or expected[0] != growing.token(node):
            return False
        self._grown[node], self._rows[node] = grown, rows[0]
        self._primed[node] = rows[1:], expected[1:], grown + 1
        return True

    def read(self, growing: Growing, nodes: Sequence[int]) -> None:
        model, context = self._model, growing.session.context
        self._rows, self._primed = {}, {}  # they stood where this pass writes
        if nodes[0] == ROOT:
            pending = model.to_read(context)[len(model.cache.tokens) :]
            primes = _primes(model, growing, ROOT, len(pending), 0)
            rows = model.grow(primes, range(ROOT, len(primes) - 1), pending)
            growing.read(len(pending) + len(primes))
            self._rows[ROOT] = rows[0]
            if primes:
                self._primed[ROOT] = rows[1:], primes, 0
            self._continued.update(range(ROOT, len(primes) - 1))
            return
        first, taken = model.grown, list[tuple[int, int]]()
        for node in nodes:
            parent = self._grown[growing.parent(node)]
            # The first child of a node goes on in its branch, others begin one.
            begins = parent in self._continued
            if first + len(taken) >= model.room(context) or self._leaves + begins > model.branches:
                continue
            self._continued.add(parent)
            self._leaves += begins
            taken.append((node, parent))
        if not taken:
            return
        rows = model.grow([growing.token(node) for node, _ in taken], [p for _, p in taken])
        growing.read(len(taken))
        for number, (node, _) in enumerate(taken):
            self._grown[node] = first + number
            self._rows[node] = rows[number]

    def row(self, node: int) -> Row:
        return self._rows[node]


def _primes(model: DraftModel, growing: Growing, node: int, unread: int, depth: int) -> list[int]:
    """What is read along behind a candidate at a depth."""
    if not model.reads_along:
        return []
    return growing.primes(node, unread)[: max(0, model.room(growing.session.context) - depth)]
