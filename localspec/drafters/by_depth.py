"""Heads that say several tokens at once from one state of the target, each at its depth.

A row tells what comes so many tokens behind the text. It serves all candidates of that depth, or
those behind one and the same token: no pass is needed to follow a branch.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from localspec.decoding.auto_sources import Growing
from localspec.decoding.interfaces import Plan
from localspec.decoding.sampling import Row
from localspec.decoding.session import Session
from localspec.decoding.tree import ROOT, TokenTree
from localspec.drafters.trained_head import TrainedHead, TrainedHeadSource

MAX_LEAVES = 16


class DepthHead(TrainedHead):
    """One that offers rows by depth."""

    def unread(self, session: Session) -> int:
        """What it drafts takes the same however long ago it did."""
        return 1

    @property
    def branches(self) -> int:
        return MAX_LEAVES

    def open(self, context: Sequence[int], most: int) -> None:
        """Before the rows of a draft of up to so many tokens are asked for."""

    @abstractmethod
    def knows(self, depth: int) -> bool:
        """Whether a row takes no pass: 0 for the next token's."""

    @abstractmethod
    def row(self, depth: int, above: int) -> Row:
        """Logits at a depth behind a token; valid until the next draft."""


class DepthSource(TrainedHeadSource):
    """Implements `localspec.decoding.auto_sources.ModelSource`."""

    def __init__(self, heads: DepthHead, *, greedy: bool = False) -> None:
        super().__init__(heads, greedy=greedy)
        self._heads = heads

    def start(self, growing: Growing) -> None:
        super().start(growing)
        session = growing.session
        self._heads.open(session.context, self._heads.room(session.context))
        self._passes = _Depths(self._heads)

    def propose(self, session: Session, plan: Plan, tree: TokenTree) -> None:
        """What follows the tip, as if that were what the head thinks likeliest."""
        self._depth = tree.depths[tree.tip()] if tree.tokens else 0
        self._heads.open(session.context, plan.depth + self._depth)
        super().propose(session, plan, tree)

    def _next_row(self, unread: Sequence[int]) -> Row:
        row = self._heads.row(self._depth, unread[-1])
        self._depth += 1
        return row


class _Depths:
    """Rows of candidates, by how far behind the text they are; a `draft_passes.DraftPasses`."""

    def __init__(self, heads: DepthHead) -> None:
        self._heads = heads
        self._places: dict[int, tuple[int, int]] = {}  # depth and token

    def knows(self, growing: Growing, node: int) -> bool:
        return self._heads.knows(self._place(growing, node))

    def read(self, growing: Growing, nodes: Sequence[int]) -> None:
        for node in nodes:
            depth = self._place(growing, node)
            if depth < self._heads.room(growing.session.context) and not self._heads.knows(depth):
                self._heads.row(*self._places[node])
                growing.read(1)

    def row(self, node: int) -> Row:
        return self._heads.row(*self._places[node])

    def _place(self, growing: Growing, node: int) -> int:
        depth = len(growing.path(node))
        above = growing.session.context[-1] if node == ROOT else growing.token(node)
        self._places[node] = depth, above
        return depth
