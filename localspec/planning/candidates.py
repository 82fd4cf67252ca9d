"""The candidates of one step: what could go into its draft tree, and how likely each is."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Sequence

from localspec.decoding.auto_sources import Prediction
from localspec.decoding.distribution import Distribution
from localspec.decoding.tree import ROOT
from localspec.planning.acceptance_estimator import AcceptanceEstimator
from localspec.planning.plan import Candidate

LEAST_REACH = 0.01
"""Candidates less likely than this are not worth keeping in mind."""

_new = tuple.__new__
"""Makes a named tuple of its fields in half the time: some twenty candidates come up in a step."""


class Candidates:
    """Tokens below each other, and the chance that each is accepted.

    Each has a number, parents before children, elder siblings before younger ones; ROOT stands for
    the committed text.

    Attributes:
        all: by number.
        children: numbers of those behind each of them, and behind ROOT; elder siblings first.
        reaches: all that they have, ascending: what they are worth together is a matter of these
            alone, see `localspec.planning.draft_value`.
    """

    __slots__ = ("_left", "all", "children", "reaches")

    def __init__(self) -> None:
        self.all: list[Candidate] = []
        self.children: dict[int, list[int]] = {}
        self.reaches: list[float] = []
        self._left: dict[int, float] = {}  # probability that none of the children is accepted

    def add(
        self,
        token: int,
        parent: int,
        source: str,
        estimator: AcceptanceEstimator | None,
        features: tuple[float, ...],
        chance: float,
        *,
        proposal: Distribution | None = None,
        ends: bool = False,
        first: bool = False,
    ) -> int:
        """Put a candidate below another one, behind its elder siblings; see `Candidate`.

        Args:
            ends: whether it ends the answer: accepting it then brings nothing, as the target's
                own token behind it is lost.

        Returns:
            Its number.
        """
        every = self.all
        number, left, above, depth = len(every), self._left.get(parent, 1.0), 1.0, 1
        if parent != ROOT:
            hung_from = every[parent]
            above, depth = hung_from.reach, hung_from.depth + 1
        reach = 0.0 if ends else above * left * chance
        fields = token, parent, depth, source, estimator, features, chance, reach, proposal, first
        every.append(_new(Candidate, fields))
        insort(self.reaches, reach)
        self._left[parent] = left * (1.0 - chance)
        siblings = self.children.get(parent)
        if siblings is None:
            self.children[parent] = [number]
        else:
            siblings.append(number)
        return number

    def hang(
        self,
        predictions: Iterable[Prediction],
        parent: int,
        source: str,
        estimator: AcceptanceEstimator,
    ) -> None:
        """Put what a lookup source expects below a candidate, as far as it is likely enough."""
        reach = self.reach(parent) * self._left.get(parent, 1.0)
        for token, features, _ in predictions:
            there = self.child(parent, token)
            if there is not None:
                parent, reach = there, self.reach(there)
                continue
            chance = estimator.predict(features)
            reach *= chance
            if reach < LEAST_REACH:
                break
            parent = self.add(token, parent, source, estimator, features, chance)

    def child(self, node: int, token: int) -> int | None:
        """The candidate below another one that is this token."""
        for number in self.children.get(node, ()):
            if self.all[number].token == token:
                return number
        return None

    def path(self, node: int) -> list[int]:
        """Tokens from the committed text down to a candidate, its own included."""
        tokens = []
        while node != ROOT:
            candidate = self.all[node]
            tokens.append(candidate.token)
            node = candidate.parent
        tokens.reverse()
        return tokens

    def reach(self, node: int) -> float:
        """Its chance of being accepted at all; 1 for ROOT."""
        return 1.0 if node == ROOT else self.all[node].reach

    def depth(self, node: int) -> int:
        """Its level; 0 for ROOT."""
        return 0 if node == ROOT else self.all[node].depth

    def likeliest(self, nodes: Sequence[int], most: int) -> list[int]:
        """Those that the text may go on behind, within so many levels, likeliest first."""
        every = self.all
        found = [n for n in nodes if every[n].depth < most and every[n].reach > 0.0]
        found.sort(key=lambda node: every[node].reach, reverse=True)
        return found
