"""One source goes on where another stopped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from localspec.decoding.interfaces import Plan, Source
from localspec.decoding.sampling import Rows
from localspec.decoding.session import Session
from localspec.decoding.tree import TokenTree


class Continuation:
    """`second` extends the draft of `first`: an n-gram a model's, or a model an n-gram's.

    Args:
        share: part of the plan's depth that `first` may use.
    """

    def __init__(self, name: str, first: Source, second: Source, *, share: float = 0.5) -> None:
        self.name = name
        self._first = first
        self._second = second
        self._share = share

    @property
    def hidden(self) -> tuple[int, ...]:
        return (*self._first.hidden, *self._second.hidden)

    @property
    def native_seconds(self) -> float:
        return self._first.native_seconds + self._second.native_seconds

    def begin(self, prompt: Sequence[int]) -> None:
        self._first.begin(prompt)
        self._second.begin(prompt)

    def propose(self, session: Session, plan: Plan, tree: TokenTree) -> None:
        start = tree.tip()
        depth = max(1, round(plan.depth * self._share))
        self._first.propose(session, replace(plan, depth=depth), tree)
        used = len(tree.path(tree.tip())) - len(tree.path(start))
        if used < plan.depth:
            # One branch only: candidates beside the continuation would hang from a guess.
            self._second.propose(session, replace(plan, depth=plan.depth - used, width=1), tree)

    def committed(self, context: Sequence[int], hidden: Mapping[int, Rows]) -> None:
        self._first.committed(context, hidden)
        self._second.committed(context, hidden)
