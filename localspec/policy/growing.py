"""The draft tree of one step while it grows: the candidates, and what is asked of the sources.

Greedy text gets a tree: the draft model's choices and what the lookup sources expect instead or
afterwards; the most probable of these are verified (EAGLE-2: Li et al. 2024, section 4). Sampled
text gets a chain, drawn from the draft model, that ends before a token is drawn which is not
expected to pay, and goes on with what is looked up.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

from localspec.decoding.auto_sources import LookupSource, ModelSource, Prediction, RankedLogits
from localspec.decoding.distribution import Distribution
from localspec.decoding.session import Session
from localspec.decoding.tree import ROOT, TokenTree
from localspec.policy.acceptance_estimator import AcceptanceEstimator, logit
from localspec.policy.worth import Bid, Worth

SECOND = "second"
"""Kind of estimator that every model source has: of its second and further choices. Where one of
that name and the kind of the first choice is there as well, that is taken."""
LEAST_REACH = 0.01
"""Candidates less likely than this are not worth keeping in mind."""
PRIMES, FAINT = 7, 0.05
"""Most expected tokens that a draft model reads along, and how likely it has to be at least that
it says the same up to there."""
AT_ONCE = 4
"""Most candidates that one pass of a draft model reads."""
ALTERNATIVES = 4
"""Candidates of a lookup source at one place."""

_new = tuple.__new__
"""Makes a named tuple of its fields in half the time: some twenty candidates come up in a step."""


class Candidate(NamedTuple):
    """A token that could go into the tree.

    Attributes:
        token, source, proposal: as in TokenTree; `parent` is another candidate's number, or ROOT.
        depth: 1 for the first level.
        estimator, features: where its chance comes from; None for one that is not learned from.
        chance: of being accepted if its parent is and its elder siblings are not.
        reach: path probability, of being accepted at all.
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
    """A lookup source, and what it expects behind the committed text."""

    source: LookupSource
    estimator: AcceptanceEstimator
    expected: list[Prediction]


class Asked(NamedTuple):
    """A model source that is asked.

    Attributes:
        first, second: estimators of its first choices and of the others.
        seconds: of its passes, by their tokens.
        onward: probability of its next token, if those before it were right, lately.
    """

    source: ModelSource
    first: AcceptanceEstimator
    second: AcceptanceEstimator
    seconds: Callable[[int], float]
    onward: float


class Growing:
    """The candidates of one step. Implements `localspec.decoding.auto_sources.Growing`.

    Args:
        worth: of drafts at this place.
        depth: longest path.
        leaves: most branches.
        drawn: whether the asked source draws its tokens from its distribution.

    Attributes:
        candidates: parents before children, elder siblings before younger ones.
        children: numbers of those behind each of them, and behind ROOT.
        sizes: tokens that each pass of the asked source read.
    """

    def __init__(
        self,
        session: Session,
        looked: Sequence[Looked],
        worth: Worth,
        *,
        depth: int,
        leaves: int,
        drawn: bool,
    ) -> None:
        self.session = session
        self.drawn = drawn
        self.branching = leaves > 1
        self.candidates: list[Candidate] = []
        self.children: dict[int, list[int]] = {}
        self.sizes: list[int] = []
        self._looked, self._worth = looked, worth
        self._depth, self._leaves = depth, leaves
        self._asked: Asked | None = None
        self._reaches: list[float] = []  # of all candidates, ascending
        self._left: dict[int, float] = {}  # probability that none of the children is accepted
        self._places: dict[int, list[Any]] = {}
        self._hints: dict[int, tuple[Looked, Prediction] | None] = {}
        self._offered: list[int] = []  # candidates of the latest level
        self._tip = ROOT  # end of the branch that the model source thinks likeliest

    # What is asked of the sources.

    def look_up(self) -> None:
        """Everything that the lookup sources expect, and what else may come."""
        for looked in self._looked:
            self._hang(looked, ROOT, looked.expected)
        if not self.branching or not self.candidates:
            return
        for looked, place in zip(self._looked, self._at(ROOT), strict=True):
            for token, chance in looked.source.others(place, ALTERNATIVES):
                if self._child(ROOT, token) is None:
                    self._add(token, ROOT, looked.source.name, None, (), chance)

    def ask(self, asked: Asked) -> None:
        """Grow the tree where the text is likeliest to go, for as long as asking the model source
        is worth it."""
        self._asked, source = asked, asked.source
        most = min(self._depth, source.room(self.session))
        # A chain is followed at its end; of a tree all ends are kept in mind.
        returns = self.branching and source.branches(self.session) > 1
        ends, newest = [ROOT] if most > 0 else [], ROOT
        source.start(self)
        while ends:
            # What was offered earlier was asked for then.
            fresh = [node for node in (ends if returns else ends[:1]) if node >= newest]
            nodes = [node for node in fresh if source.knows(self, node)]
            if not nodes:
                if ends[0] != ROOT and not self._goes_on(ends[0]):
                    break
                nodes = self._worth_reading(ends, source)
            self._offered, newest = [], len(self.candidates)
            source.expand(self, nodes)
            left = [node for node in ends if node not in nodes] if returns else []
            ends = self._likeliest([*left, *self._offered], most)
            if self._offered:
                self._tip = ends[0] if ends else self._offered[0]
        self._go_on(self._depth - self._depth_of(self._tip))

    # What the model source sees.

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

    def hint(self, node: int) -> Prediction | None:
        found = self._hint(node)
        return None if found is None else found[1]

    def primes(self, node: int, unread: int) -> list[int]:
        assert self._asked is not None
        found, seconds = self._hint(node), self._asked.seconds
        if found is None:
            return []
        looked, most = found[0], min(self._depth - self._depth_of(node) - 1, PRIMES)
        alone, one = seconds(unread), seconds(1)
        tokens: list[int] = []
        saved = best = 0.0
        reach, count = 1.0, 0
        for prediction in islice(self._expected(node, looked), max(0, most)):
            tokens.append(prediction.token)
            reach *= looked.estimator.predict(prediction.features)
            if reach < FAINT:
                break
            saved += reach * one
            together = seconds(unread + len(tokens))
            if saved - (together - alone) > best and self._worth.affords(together, 1):
                best, count = saved - (together - alone), len(tokens)
        return tokens[:count]

    def read(self, size: int) -> None:
        assert self._asked is not None
        self.sizes.append(size)
        self._worth.spend(self._asked.seconds(size))

    def worth_drawing(self, node: int, features: tuple[float, ...]) -> bool:
        assert self._asked is not None
        if not self._worth.affords(0.0, self._depth_of(node) + 1):
            return False
        reach = self._asked.first.predict(features) * self._reach(node)
        stop = self._worth.of(self._reaches)
        if self._worth.of(self._reaches, (reach,)) > stop:
            return True
        return self._grows(stop, (reach,), reach, node)

    def offer(
        self,
        node: int,
        token: int,
        features: tuple[float, ...],
        *,
        proposal: Distribution | None = None,
        logits: RankedLogits | None = None,
    ) -> int:
        assert self._asked is not None
        asked, credit = self._asked.first, self._asked.source.credit
        chance, ends = asked.predict(features), self.session.ends(token)
        first = self._add(
            token, node, credit, asked, features, chance, proposal=proposal, ends=ends, first=True
        )
        self._offered.append(first)
        if self.branching and logits is not None:
            self._siblings(node, logits)
        return first

    # What of it is verified.

    def selected(self, granted: int | None) -> TokenTree:
        """The tree that is verified: `granted` of the candidates, or as many as are worth it."""
        order, reaches, firm = self._order()
        count = self._worth.count(reaches, firm) if granted is None else granted
        tree, nodes = TokenTree(), {ROOT: ROOT}
        self.chances: dict[int, float] = {}
        self.tokens = 1.0  # expected
        for number in sorted(order[:count]):
            one = self.candidates[number]
            node = tree.add(one.token, nodes[one.parent], one.source, one.proposal)
            nodes[number] = node
            self.chances[node] = one.chance
            self.tokens += one.reach
        return tree

    def bid(self) -> Bid:
        """What `selected` would choose from."""
        _, reaches, firm = self._order()
        return Bid(reaches[: max(firm, self._depth)], firm, self._worth.rate, self._worth.spare)

    def _order(self) -> tuple[list[int], list[float], int]:
        """The candidates in the order in which they are taken, the reach of each, and how many have
        to be taken. Every beginning of the order is a tree of at most so many branches as fit."""
        every = self.candidates
        if self.drawn and self._asked is not None:
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
        *,
        proposal: Distribution | None = None,
        ends: bool = False,
        first: bool = False,
    ) -> int:
        """Put a candidate below another one, behind its elder siblings; returns its number.

        Args:
            ends: whether it ends the answer: accepting it then brings nothing, as the target's
                own token behind it is lost.
        """
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

    def _siblings(self, node: int, logits: RankedLogits) -> None:
        """The second and third choices, and what was looked up if it is another one."""
        assert self._asked is not None
        hinted, estimator = self._hint(node), self._asked.second
        expected = -1 if hinted is None else hinted[1].token
        for token, features in further_choices(logits, expected):
            source = self._asked.source.credit
            if hinted is not None and token not in logits.tokens:
                source = hinted[0].source.name
            chance, ends = estimator.predict(features), self.session.ends(token)
            number = self._add(token, node, source, estimator, features, chance, ends=ends)
            self._offered.append(number)
            if token == expected and node == ROOT and hinted is not None:
                self._hang(hinted[0], number, hinted[0].expected[1:])

    def _go_on(self, room: int) -> None:
        """What the lookup sources expect behind the end of the likeliest branch."""
        if room < 1 or self._reach(self._tip) == 0.0:
            return
        hinted = self._hint(self._tip)
        if hinted is not None:
            self._hang(hinted[0], self._tip, islice(self._expected(self._tip, hinted[0]), room))

    def _child(self, node: int, token: int) -> int | None:
        for number in self.children.get(node, ()):
            if self.candidates[number].token == token:
                return number
        return None

    def _reach(self, node: int) -> float:
        return 1.0 if node == ROOT else self.candidates[node].reach

    def _depth_of(self, node: int) -> int:
        return 0 if node == ROOT else self.candidates[node].depth

    def _likeliest(self, nodes: Sequence[int], most: int) -> list[int]:
        """Those that the text may go on behind, within so many levels, likeliest first."""
        every = self.candidates
        found = [n for n in nodes if every[n].depth < most and every[n].reach > 0.0]
        found.sort(key=lambda node: every[node].reach, reverse=True)
        return found

    # Where the lookup sources are.

    def _at(self, node: int) -> list[Any]:
        """Of each of them, its place behind a candidate."""
        found = self._places.get(node)
        if found is None:
            if node == ROOT:
                found = [looked.source.place(self.session) for looked in self._looked]
            else:
                above, token = self._at(self.parent(node)), self.token(node)
                places = zip(self._looked, above, strict=True)
                found = [looked.source.follow(place, token) for looked, place in places]
            self._places[node] = found
        return found

    def _expected(self, node: int, looked: Looked) -> Iterator[Prediction]:
        place = self._at(node)[self._looked.index(looked)]
        return looked.source.expected(place)

    def _hint(self, node: int) -> tuple[Looked, Prediction] | None:
        """What is expected most firmly behind a candidate, and by whom."""
        if node not in self._hints:
            best: tuple[Looked, Prediction] | None = None
            for looked, place in zip(self._looked, self._at(node), strict=True):
                prediction = next(looked.source.expected(place), None)
                if prediction is not None and (best is None or prediction.weight > best[1].weight):
                    best = looked, prediction
            self._hints[node] = best
        return self._hints[node]

    # What more of them are worth.

    def _goes_on(self, node: int) -> bool:
        """Whether passes behind a candidate are worth more than what there is."""
        return self._grows(self._worth.of(self._reaches), (), self._reach(node), node)

    def _grows(self, now: float, known: tuple[float, ...], reach: float, node: int) -> bool:
        assert self._asked is not None
        depth, one, worth = self._depth_of(node), self._asked.seconds(1), self._worth
        if not worth.affords(one, depth + len(known) + 1):
            return False
        room, onward = self._depth - depth, self._asked.onward
        return worth.grows(now, self._reaches, known, reach, onward, one, room)

    def _worth_reading(self, nodes: list[int], source: ModelSource) -> list[int]:
        """The best candidate, and those whose reading along in the same pass pays."""
        assert self._asked is not None
        seconds, onward, worth = self._asked.seconds, self._asked.onward, self._worth
        taken = nodes[:1]
        if len(nodes) == 1:
            return taken
        reaches = [self._reach(nodes[0]) * onward]
        value = worth.of(self._reaches, reaches)
        for node in nodes[1 : min(AT_ONCE, source.branches(self.session))]:
            longer, reach = seconds(len(taken) + 1), self._reach(node) * onward
            price = worth.rate * (longer - seconds(len(taken)))
            if reach <= price or not worth.affords(longer, 1):
                break
            with_it = worth.of(self._reaches, [*reaches, reach])
            if with_it - value <= price:
                break
            taken.append(node)
            reaches.append(reach)
            value = with_it
        return taken


def further_choices(
    logits: RankedLogits, expected: int
) -> Iterator[tuple[int, tuple[float, float, float]]]:
    """The choices behind the first one in the order in which they are tried, with the features of
    each given that those before it were wrong, see `localspec.decoding.auto_sources.ModelSource`.

    Args:
        expected: what was looked up, -1 for nothing; it comes first.
    """
    others = list(zip(logits.tokens[1:], logits.probs[1:], strict=True))
    if expected >= 0 and expected not in logits.tokens:
        others.append((expected, logits.prob(expected)))
    if len(others) > 1:
        others.sort(key=lambda other: (other[0] == expected, other[1]), reverse=True)
    remaining = max(1e-3, 1.0 - logits.probs[0])
    for token, prob in others:
        yield token, (1.0, logit(prob / remaining), 1.0 if token == expected else 0.0)
        remaining = max(1e-3, remaining - prob)
