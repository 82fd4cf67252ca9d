"""The candidates of one draft, as a tree, and which of them are verified."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable
from typing import NamedTuple

from localspec.decoding.distribution import Distribution
from localspec.decoding.session import Session
from localspec.decoding.sources import LookupSource, Prediction
from localspec.decoding.tree import ROOT, TokenTree
from localspec.policy.acceptance_estimator import AcceptanceEstimator
from localspec.policy.worth import Bid, Worth

LEAST_REACH = 0.01  # candidates less likely than this are dropped

_new = tuple.__new__  # makes a named tuple of its fields in half the time


class Candidate(NamedTuple):
    """A token that could go into the tree; its `parent` is another one's number, or ROOT.

    Attributes:
        estimator, features: where its chance comes from; None for one that is not learned from.
        chance: of being accepted if its parent is and its elder siblings are not.
        reach: path probability.
        first: whether it is the first choice of the model source that was asked.
    """

    token: int
    parent: int
    depth: int
    source: str
    estimator: AcceptanceEstimator | None
    features: tuple[float, ...]
    chance: float
    reach: float
    proposal: Distribution | None
    first: bool


class Looked(NamedTuple):
    """A lookup source, and what it expects after the committed text."""

    source: LookupSource
    estimator: AcceptanceEstimator
    expected: list[Prediction]


class Candidates:
    """A tree of candidates, parents before children, elder siblings before younger ones.

    Args:
        depth: longest path.
        leaves: most branches.
        drawn: whether tokens of a model source are drawn from its distribution.

    Attributes:
        children: numbers of candidates, by parent or ROOT.
    """

    def __init__(
        self, session: Session, worth: Worth, *, depth: int, leaves: int, drawn: bool
    ) -> None:
        self.session, self.drawn = session, drawn
        self.candidates: list[Candidate] = []
        self.children: dict[int, list[int]] = {}
        self._worth = worth
        self.depth, self._leaves = depth, leaves
        self._reaches: list[float] = []  # of all candidates, ascending
        self._left: dict[int, float] = {}  # probability that none of the children is accepted

    def token(self, node: int) -> int:
        return self.candidates[node].token

    def parent(self, node: int) -> int:
        return self.candidates[node].parent

    def path(self, node: int) -> list[int]:
        tokens = []
        while node != ROOT:
            candidate = self.candidates[node]
            tokens.append(candidate.token)
            node = candidate.parent
        tokens.reverse()
        return tokens

    # What of it is verified.

    def selected(self, granted: int | None) -> TokenTree:
        """The tree that is verified: `granted` of the candidates, or as many as are worth it."""
        order, reaches, firm = self._order()
        count = self._worth.count(reaches, firm) if granted is None else granted
        tree, nodes = TokenTree(), {ROOT: ROOT}
        self.tokens = 1.0  # expected
        for number in sorted(order[:count]):
            one = self.candidates[number]
            nodes[number] = tree.add(one.token, nodes[one.parent], one.source, one.proposal)
            self.tokens += one.reach
        return tree

    def bid(self) -> Bid:
        """What `selected` would choose from."""
        _, reaches, firm = self._order()
        return Bid(reaches[: max(firm, self.depth)], firm, self._worth.rate, self._worth.spare)

    def _order(self) -> tuple[list[int], list[float], int]:
        """The candidates in the order in which they are taken, the reach of each, and how many have
        to be taken. Every beginning is a tree that fits."""
        every = self.candidates
        if self.drawn:
            numbers = list(range(len(every)))
            return numbers, [c.reach for c in every], sum(c.proposal is not None for c in every)
        # Parents are at least as likely as their children, and come first among equals.
        numbers = sorted(range(len(every)), key=lambda n: every[n].reach, reverse=True)
        kept, above, leaves, found = set[int](), set[int](), 0, list[int]()
        for number in numbers:
            parent = every[number].parent
            if parent != ROOT and parent not in kept:
                continue
            branches = parent in above or (parent == ROOT and leaves == 0)
            if branches and leaves == self._leaves:
                continue
            leaves += branches
            kept.add(number)
            above.add(parent)
            found.append(number)
        return found, [every[number].reach for number in found], 0

    # Candidates.

    def _add(
        self,
        token: int,
        parent: int,
        source: str,
        estimator: AcceptanceEstimator | None,
        features: tuple[float, ...],
        chance: float,
        proposal: Distribution | None = None,
        *,
        ends: bool = False,
        first: bool = False,
    ) -> int:
        """Put a candidate below another one; returns its number. `ends`: accepting it ends the
        answer, and brings nothing, as the target's own token after it is lost."""
        number, left = len(self.candidates), self._left.get(parent, 1.0)
        reach = 0.0 if ends else self._reach(parent) * left * chance
        depth = self._depth_of(parent) + 1
        fields = token, parent, depth, source, estimator, features, chance, reach, proposal, first
        self.candidates.append(_new(Candidate, fields))
        insort(self._reaches, reach)
        self._left[parent] = left * (1.0 - chance)
        self.children.setdefault(parent, []).append(number)
        return number

    def _hang(self, looked: Looked, parent: int, predictions: Iterable[Prediction]) -> None:
        """What a lookup source expects below a candidate, as far as it is likely enough."""
        reach = self._reach(parent) * self._left.get(parent, 1.0)
        for token, features, _ in predictions:
            there = self._child(parent, token)
            if there is not None:
                parent, reach = there, self._reach(there)
                continue
            chance = looked.estimator.predict(features)
            reach *= chance
            if reach < LEAST_REACH:
                break
            name, ends = looked.source.name, self.session.ends(token)
            parent = self._add(token, parent, name, looked.estimator, features, chance, ends=ends)
            if ends:
                break

    def _child(self, node: int, token: int) -> int | None:
        for number in self.children.get(node, ()):
            if self.candidates[number].token == token:
                return number
        return None

    def _reach(self, node: int) -> float:
        return 1.0 if node == ROOT else self.candidates[node].reach

    def _depth_of(self, node: int) -> int:
        return 0 if node == ROOT else self.candidates[node].depth
