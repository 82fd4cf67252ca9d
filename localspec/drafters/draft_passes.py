"""The passes of a draft model over one draft.

A chain is appended to the cache and cut back. A tree grows behind the committed text, level by
level, and nothing in it is read twice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from localspec.decoding.sampling import Row, Rows
from localspec.decoding.sources import Drafted
from localspec.decoding.tree import ROOT

if TYPE_CHECKING:
    from localspec.drafters.draft_model import DraftModel


class RowsAhead(NamedTuple):
    """Rows behind a text and its expected continuation.

    Attributes:
        rows: float32 [1 + len(expected), vocabulary].
    """

    rows: Rows
    expected: list[int]

    def behind(self, tokens: Sequence[int]) -> RowsAhead | None:
        """What is left behind `tokens`; None where other ones were expected."""
        n = len(tokens)
        if n > len(self.expected) or self.expected[:n] != list(tokens):
            return None
        return RowsAhead(self.rows[n:], self.expected[n:])


class ChainPasses:
    """Of a draft that is one branch; `ahead`: rows that are known already."""

    def __init__(self, model: DraftModel, ahead: RowsAhead | None = None) -> None:
        self._model = model
        self._rows: Rows | None = None if ahead is None else ahead.rows
        self._expected = [] if ahead is None else ahead.expected
        self._at = ROOT  # the candidate behind which they begin
        self._read = -1  # tokens of the cache behind that one, where nothing was read along

    def knows(self, draft: Drafted, node: int) -> bool:
        if self._rows is None or node == self._at:
            return self._rows is not None
        expected = self._expected
        if not expected or draft.parent(node) != self._at or draft.token(node) != expected[0]:
            return False
        self._rows, self._expected, self._at = self._rows[1:], expected[1:], node
        return True

    def read(self, draft: Drafted, nodes: Sequence[int]) -> None:
        (node,) = nodes
        model, cache = self._model, self._model.cache
        if self._read == len(cache.tokens) and draft.parent(node) == self._at:
            unread = [draft.token(node)]
        else:
            path, context = draft.path(node), model.to_read(draft.session.context)
            cache.truncate(min(len(cache.tokens), len(context) + len(path) - 1))
            held = len(cache.tokens)
            unread = [*context[held:], *path[max(0, held - len(context)) :]]
        size = len(unread)
        primes = _primes(model, draft, node, size) if model.reads_along else []
        self._rows = model.read([*unread, *primes], 1 + len(primes))
        if not primes:
            cache.checkpoint()
        self._read = -1 if primes else len(cache.tokens)
        draft.read(size + len(primes))
        self._expected, self._at = primes, node

    def row(self, node: int) -> Row:
        assert self._rows is not None
        row: Row = self._rows[0]
        return row


class TreePasses:
    def __init__(self, model: DraftModel) -> None:
        self._model = model
        self._grown: dict[int, int] = {ROOT: ROOT}  # nodes of the model's tree, by candidate
        self._rows: dict[int, Row] = {}
        self._primed: dict[int, tuple[Rows, list[int], int]] = {}
        self._continued: set[int] = set()
        self._leaves = 1

    def knows(self, draft: Drafted, node: int) -> bool:
        if node in self._rows:
            return True
        if node == ROOT or not self._primed:
            return False
        primed = self._primed.get(draft.parent(node))
        if primed is None:
            return False
        # The parent's pass read on with what was expected behind it.
        rows, expected, grown = primed
        if not expected or expected[0] != draft.token(node):
            return False
        self._grown[node], self._rows[node] = grown, rows[0]
        self._primed[node] = rows[1:], expected[1:], grown + 1
        return True

    def read(self, draft: Drafted, nodes: Sequence[int]) -> None:
        model, context = self._model, draft.session.context
        self._rows, self._primed = {}, {}  # they stood where this pass writes
        if nodes[0] == ROOT:
            pending = model.to_read(context)[len(model.cache.tokens) :]
            primes = _primes(model, draft, ROOT, len(pending)) if model.reads_along else []
            rows = model.grow(primes, range(ROOT, len(primes) - 1), pending)
            draft.read(len(pending) + len(primes))
            self._rows[ROOT] = rows[0]
            if primes:
                self._primed[ROOT] = rows[1:], primes, 0
            self._continued.update(range(ROOT, len(primes) - 1))
            return
        first, taken = model.grown, list[tuple[int, int]]()
        for node in nodes:
            parent = self._grown[draft.parent(node)]
            # The first child of a node goes on in its branch, others begin one.
            begins = parent in self._continued
            if first + len(taken) >= model.room(context) or self._leaves + begins > model.branches:
                continue
            self._continued.add(parent)
            self._leaves += begins
            taken.append((node, parent))
        if not taken:
            return
        rows = model.grow([draft.token(node) for node, _ in taken], [p for _, p in taken])
        draft.read(len(taken))
        for number, (node, _) in enumerate(taken):
            self._grown[node] = first + number
            self._rows[node] = rows[number]

    def row(self, node: int) -> Row:
        return self._rows[node]


def _primes(model: DraftModel, draft: Drafted, node: int, unread: int) -> list[int]:
    primes = draft.primes(node, unread)
    if primes:
        room = model.room(draft.session.context) - len(draft.path(node))
        primes = primes[: max(0, room)]
    return primes
