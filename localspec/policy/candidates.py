"""The candidates of one draft, as a tree, and which of them are verified."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable
from operator import attrgetter
from typing import Any, NamedTuple

from localspec.decoding.distribution import Distribution
from localspec.decoding.draft_sampler import DraftSampler
from localspec.decoding.session import Session
from localspec.decoding.sources import LookupSource, Prediction
from localspec.decoding.tree import ROOT, TokenTree
from localspec.policy.acceptance_estimator import AcceptanceEstimator
from localspec.policy.worth import Bid, Worth

LEAST_REACH = 0.01  # candidates less likely than this are dropped

_reach_of = attrgetter("reach")


class Looked(NamedTuple):
    """A lookup source, and what it expects after the committed text."""

    source: LookupSource
    estimator: AcceptanceEstimator
    expected: list[Prediction]


class Candidate:
    """A token that could go into the tree. One without a parent stands for the committed text.

    Attributes:
        estimator, features: where its chance comes from; None for one that is not learned from.
        chance: of being accepted if its parent is and its elder siblings are not.
        reach: path probability.
        first: whether it is the first choice of the model source that was asked.
        left: probability that none of its children is accepted.
        sampler: of what may follow it; None until that is asked for.
        places, hint: of each lookup source, and what is expected most firmly there; likewise.
    """

    __slots__ = (
        *("token", "parent", "depth", "source", "estimator", "features", "chance", "reach"),
        *("proposal", "first", "left", "sampler", "places", "hint"),
    )

    def __init__(
        self,
        token: int,
        parent: Candidate | None,
        source: str,
        estimator: AcceptanceEstimator | None = None,
        features: tuple[float, ...] = (),
        chance: float = 1.0,
        reach: float = 1.0,
        proposal: Distribution | None = None,
        *,
        first: bool = False,
    ) -> None:
        self.token, self.parent, self.source = token, parent, source
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.estimator, self.features = estimator, features
        self.chance, self.reach = chance, reach
        self.proposal, self.first = proposal, first
        self.left = 1.0
        self.sampler: DraftSampler | None = None
        self.places: list[Any] | None = None
        self.hint: tuple[Looked, Prediction] | None = None

    def path(self) -> list[int]:
        """Tokens from behind the committed text to its own."""
        tokens, node = [], self
        while node.parent is not None:
            tokens.append(node.token)
            node = node.parent
        tokens.reverse()
        return tokens


class Candidates:
    """A tree of candidates below `root`, parents before children.

    Args:
        depth: longest path.
        leaves: most branches.
        drawn: whether tokens of a model source are drawn from its distribution.

    Attributes:
        children: of those that have some, elder siblings before younger ones.
    """

    def __init__(
        self, session: Session, worth: Worth, *, depth: int, leaves: int, drawn: bool
    ) -> None:
        self.session, self.drawn = session, drawn
        self.root = Candidate(-1, None, "")
        self.candidates: list[Candidate] = []
        self.children: dict[Candidate, list[Candidate]] = {}  # a node that had its own were a cycle
        self._worth = worth
        self.depth, self._leaves = depth, leaves
        self._reaches: list[float] = []  # of all candidates, ascending

    # What of it is verified.

    def selected(self, granted: int | None) -> TokenTree:
        """The tree that is verified: `granted` of the candidates, or as many as are worth it."""
        order, reaches, firm = self._order()
        count = self._worth.count(reaches, firm) if granted is None else granted
        tree, chosen = TokenTree(), set(order[:count])
        nodes: dict[Candidate | None, int] = {self.root: ROOT}
        self.tokens = 1.0  # expected
        for one in self.candidates:
            if one in chosen:
                nodes[one] = tree.add(one.token, nodes[one.parent], one.source, one.proposal)
                self.tokens += one.reach
        return tree

    def bid(self) -> Bid:
        """What `selected` would choose from."""
        _, reaches, firm = self._order()
        return Bid(reaches[: max(firm, self.depth)], firm, self._worth.rate, self._worth.spare)

    def _order(self) -> tuple[list[Candidate], list[float], int]:
        """The candidates in the order in which they are taken, the reach of each, and how many have
        to be taken. Every beginning is a tree that fits."""
        if self.drawn:
            firm = sum(one.proposal is not None for one in self.candidates)
            return self.candidates, [*map(_reach_of, self.candidates)], firm
        # Parents are at least as likely as their children, and come first among equals.
        kept: set[Candidate | None] = {self.root}
        above, leaves, found = set[Candidate | None](), 0, list[Candidate]()
        for one in sorted(self.candidates, key=_reach_of, reverse=True):
            parent = one.parent
            if parent not in kept:
                continue
            branches = parent in above or (parent is self.root and leaves == 0)
            if branches and leaves == self._leaves:
                continue
            leaves += branches
            kept.add(one)
            above.add(parent)
            found.append(one)
        return found, [*map(_reach_of, found)], 0

    # Candidates.

    def _add(
        self,
        token: int,
        parent: Candidate,
        source: str,
        estimator: AcceptanceEstimator | None,
        features: tuple[float, ...],
        chance: float,
        proposal: Distribution | None = None,
        *,
        first: bool = False,
    ) -> Candidate:
        """Put a candidate below another one. One that ends the answer brings nothing, as the
        target's own token after it is lost: its reach is 0."""
        left = parent.left
        reach = 0.0 if self.session.ends(token) else parent.reach * left * chance
        one = Candidate(
            token, parent, source, estimator, features, chance, reach, proposal, first=first
        )
        self.candidates.append(one)
        self.children.setdefault(parent, []).append(one)
        parent.left = left * (1.0 - chance)
        insort(self._reaches, reach)
        return one

    def _hang(self, looked: Looked, parent: Candidate, predictions: Iterable[Prediction]) -> None:
        """What a lookup source expects below a candidate, as far as it is likely enough."""
        name, estimator = looked.source.name, looked.estimator
        reach = parent.reach * parent.left
        for token, features, _ in predictions:
            there = self._child(parent, token)
            if there is None:
                chance = estimator.predict(features)
                reach *= chance
                if reach < LEAST_REACH:
                    return
                parent = self._add(token, parent, name, estimator, features, chance)
                if not parent.reach:
                    return
            else:
                parent, reach = there, there.reach

    def _child(self, parent: Candidate, token: int) -> Candidate | None:
        for child in self.children.get(parent, ()):
            if child.token == token:
                return child
        return None
