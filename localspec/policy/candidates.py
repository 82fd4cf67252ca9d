"""The candidate tokens of one draft, as a tree, and the choice of those to verify."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable
from dataclasses import dataclass
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


class Lookup(NamedTuple):
    """A lookup source with its predictions for what follows the committed text."""

    source: LookupSource
    estimator: AcceptanceEstimator
    predictions: list[Prediction]


@dataclass(slots=True, eq=False)
class Candidate:
    """A token that could go into the tree. One without a parent stands for the committed text.

    Attributes:
        estimator, features: that its chance comes from; None if nothing is learned from it.
        chance: accept probability, given that its parent is accepted and no elder sibling is.
        reach: path probability.
        first: whether it is the first choice of the model source.
        remaining: probability that none of its children is accepted.
        sampler: of the tokens after it; None until needed.
        positions, hint: of each lookup source after it, and their firmest prediction; None until
            needed.
    """

    token: int
    parent: Candidate | None
    source: str
    estimator: AcceptanceEstimator | None = None
    features: tuple[float, ...] = ()
    chance: float = 1.0
    reach: float = 1.0
    proposal: Distribution | None = None
    first: bool = False
    depth: int = 0
    remaining: float = 1.0
    sampler: DraftSampler | None = None
    positions: list[Any] | None = None
    hint: tuple[Lookup, Prediction] | None = None

    def path(self) -> list[int]:
        """Tokens after the committed text, up to and including its own."""
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
        children: by parent, elder siblings before younger ones; no entry for a leaf.
    """

    def __init__(
        self, session: Session, worth: Worth, *, depth: int, leaves: int, drawn: bool
    ) -> None:
        self.session, self.drawn = session, drawn
        self.root = Candidate(-1, None, "")
        self.candidates: list[Candidate] = []
        # A dict here, as lists in the candidates would make reference cycles.
        self.children: dict[Candidate, list[Candidate]] = {}
        self._worth = worth
        self.depth, self._leaves = depth, leaves
        self._reaches: list[float] = []  # of all candidates, ascending

    # Choice of what is verified.

    def select(self, count: int | None) -> TokenTree:
        """Return the tree to verify: the best `count` candidates, or as many as pay if None."""
        order, reaches, firm = self._order()
        if count is None:
            count = self._worth.count(reaches, firm)
        tree, chosen = TokenTree(), set(order[:count])
        nodes: dict[Candidate | None, int] = {self.root: ROOT}
        self.tokens = 1.0  # expected
        for candidate in self.candidates:
            if candidate in chosen:
                parent, proposal = nodes[candidate.parent], candidate.proposal
                nodes[candidate] = tree.add(candidate.token, parent, candidate.source, proposal)
                self.tokens += candidate.reach
        return tree

    def bid(self) -> Bid:
        """The candidates that `select` would choose from, for a pass shared by answers."""
        _, reaches, firm = self._order()
        return Bid(reaches[: max(firm, self.depth)], firm, self._worth.rate, self._worth.spare)

    def _order(self) -> tuple[list[Candidate], list[float], int]:
        """Candidates in the order of choice, their reaches, and how many are mandatory. Every
        prefix of the order is a valid tree."""
        if self.drawn:
            firm = sum(candidate.proposal is not None for candidate in self.candidates)
            return self.candidates, [*map(_reach_of, self.candidates)], firm
        # Parents are at least as likely as their children, and come first among equals.
        kept: set[Candidate | None] = {self.root}
        parents, leaves, order = set[Candidate | None](), 0, list[Candidate]()
        for candidate in sorted(self.candidates, key=_reach_of, reverse=True):
            parent = candidate.parent
            if parent not in kept:
                continue
            branches = parent in parents or (parent is self.root and leaves == 0)
            if branches and leaves == self._leaves:
                continue
            leaves += branches
            kept.add(candidate)
            parents.add(parent)
            order.append(candidate)
        return order, [*map(_reach_of, order)], 0

    # Addition of candidates.

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
        """Add a candidate below another one. One that ends the answer has reach 0: it gains
        nothing, as the target's own token after it is lost."""
        remaining = parent.remaining
        reach = 0.0 if self.session.ends(token) else parent.reach * remaining * chance
        depth = parent.depth + 1
        candidate = Candidate(
            token, parent, source, estimator, features, chance, reach, proposal, first, depth
        )
        self.candidates.append(candidate)
        self.children.setdefault(parent, []).append(candidate)
        parent.remaining = remaining * (1.0 - chance)
        insort(self._reaches, reach)
        return candidate

    def _attach(self, lookup: Lookup, parent: Candidate, predictions: Iterable[Prediction]) -> None:
        """Add a chain of predictions below a candidate, as far as it is likely enough."""
        name, estimator = lookup.source.name, lookup.estimator
        reach = parent.reach * parent.remaining
        for token, features, _ in predictions:
            child = self._child(parent, token)
            if child is None:
                chance = estimator.predict(features)
                reach *= chance
                if reach < LEAST_REACH:
                    return
                parent = self._add(token, parent, name, estimator, features, chance)
                if not parent.reach:
                    return
            else:
                parent, reach = child, child.reach

    def _child(self, parent: Candidate, token: int) -> Candidate | None:
        for child in self.children.get(parent, ()):
            if child.token == token:
                return child
        return None
