"""The draft tree of one step while it grows.

Greedy text gets a tree, whose most probable nodes are verified (EAGLE-2: Li et al. 2024, section
4). A draft model reads one path of it; further choices are leaves, which cost no pass. Sampled text
gets a chain, drawn from the draft model, which ends before a token is drawn that is not expected to
pay, and goes on with what is looked up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from localspec.decoding.draft_sampler import DraftSampler, RankedLogits
from localspec.decoding.sampling import DEAD_ENDS
from localspec.decoding.session import Session
from localspec.decoding.sources import DraftPasses, Prediction
from localspec.decoding.tree import ROOT
from localspec.policy.acceptance_estimator import logit
from localspec.policy.asking import Asking
from localspec.policy.candidates import Candidates, Looked
from localspec.policy.worth import Worth

PRIMES, FAINT = 7, 0.05
"""Most expected tokens that a draft model reads along, and their least probability."""
ALTERNATIVES = 4  # candidates of a lookup source at one place


class Growing(Candidates):
    """The candidates of one step; the `localspec.decoding.sources.Drafted` of the model it asks.

    Attributes:
        branching: whether more than one branch may be verified.
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
        super().__init__(session, worth, depth=depth, leaves=leaves, drawn=drawn)
        self.branching = leaves > 1
        self.sizes: list[int] = []
        self._looked = looked
        self._asked: Asking | None = None
        self._places: dict[int, list[Any]] = {}
        self._hints: dict[int, tuple[Looked, Prediction] | None] = {}
        self._offered: list[int] = []  # candidates of the latest level
        self._tip = ROOT  # end of the branch that the model source thinks likeliest

    # What is asked of the sources.

    def look_up(self) -> None:
        """Everything that the lookup sources expect."""
        for looked in self._looked:
            self._hang(looked, ROOT, looked.expected)
        if not self.branching or not self.candidates:
            return
        for looked, place in zip(self._looked, self._at(ROOT), strict=True):
            for token, chance in looked.source.others(place, ALTERNATIVES):
                if self._child(ROOT, token) is None:
                    self._add(token, ROOT, looked.source.name, None, (), chance)

    def ask(self, asked: Asking) -> None:
        """Grow the tree where the text is likeliest to go, while asking the model source is worth
        it."""
        self._asked, source = asked, asked.source
        most = min(self.depth, source.room(self.session.context))
        ends = [ROOT] if most > 0 else []
        self._samplers = {ROOT: DraftSampler(self.session, (), greedy=source.greedy)}
        passes = source.start(self)
        while ends:
            if not passes.knows(self, ends[0]):
                if ends[0] != ROOT and not self._goes_on(ends[0]):
                    break
                passes.read(self, ends[0])
            self._offered = []
            for node in ends:
                if passes.knows(self, node):
                    self._offer(node, passes)
            ends = self._likeliest(self._offered, most)
            if self._offered:
                self._tip = ends[0] if ends else self._offered[0]
        self._go_on(self.depth - self._depth_of(self._tip))

    # What passes of the model see.

    def primes(self, node: int, unread: int) -> list[int]:
        assert self._asked is not None
        found, seconds = self._hint(node), self._asked.seconds
        if found is None:
            return []
        looked, most = found[0], min(self.depth - self._depth_of(node) - 1, PRIMES)
        alone, one = seconds(unread), self._asked.one
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

    # What the model says.

    def _offer(self, node: int, passes: DraftPasses) -> None:
        """Add what the model would say after a candidate."""
        assert self._asked is not None
        sampler = self._sampler(node)
        if not sampler.open:
            return
        row, hinted, estimator = passes.row(node), self._hint(node), self._asked.first
        try:
            logits = sampler.ranked(row, 3 if self.branching else 1)
        except DEAD_ENDS:
            return
        features = features_of(logits, None if hinted is None else hinted[1])
        token, proposal = logits.tokens[0], None
        if self.drawn:
            if not self._worth_drawing(node, features):
                return
            token, proposal = sampler.candidates(row, 1)[0]
        chance, ends = estimator.predict(features), self.session.ends(token)
        credit = self._asked.source.credit
        self._offered.append(
            self._add(
                token, node, credit, estimator, features, chance, proposal, ends=ends, first=True
            )
        )
        if self.branching and not self.drawn:
            self._siblings(node, logits)

    def _worth_drawing(self, node: int, features: tuple[float, ...]) -> bool:
        """Whether a token with these features should follow; asked before it is drawn."""
        assert self._asked is not None
        if not self._worth.affords(0.0, self._depth_of(node) + 1):
            return False
        reach = self._asked.first.predict(features) * self._reach(node)
        stop = self._worth.of(self._reaches)
        if self._worth.of(self._reaches, (reach,)) > stop:
            return True
        return self._grows(stop, (reach,), reach, node)

    def _sampler(self, node: int) -> DraftSampler:
        """What may be said after a candidate."""
        found = self._samplers.get(node)
        if found is None:
            found = self._sampler(self.parent(node)).forked(self.token(node))
            self._samplers[node] = found
        return found

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
        """What the lookup sources expect after the end of the likeliest branch."""
        if room < 1 or self._reach(self._tip) == 0.0:
            return
        hinted = self._hint(self._tip)
        if hinted is not None:
            self._hang(hinted[0], self._tip, islice(self._expected(self._tip, hinted[0]), room))

    def _likeliest(self, nodes: Sequence[int], most: int) -> list[int]:
        """Those that the text may go on after, within so many levels, likeliest first."""
        every = self.candidates
        found = [n for n in nodes if every[n].depth < most and every[n].reach > 0.0]
        found.sort(key=lambda node: every[node].reach, reverse=True)
        return found

    # Where the lookup sources are.

    def _at(self, node: int) -> list[Any]:
        """The place of each lookup source after a candidate."""
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
        """What is expected most firmly after a candidate, and by whom."""
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
        """Whether passes after a candidate are worth more than what there is."""
        return self._grows(self._worth.of(self._reaches), (), self._reach(node), node)

    def _grows(self, now: float, known: tuple[float, ...], reach: float, node: int) -> bool:
        assert self._asked is not None
        depth, one, worth = self._depth_of(node), self._asked.one, self._worth
        if not worth.affords(one, depth + len(known) + 1):
            return False
        room, onward = self.depth - depth, self._asked.onward
        return worth.grows(now, self._reaches, known, reach, onward, one, room)


def features_of(logits: RankedLogits, hint: Prediction | None) -> tuple[float, ...]:
    """Of a first choice: 1, logit of its probability, entropy of the row in nats, and agreement
    with the `hint` of a lookup source, -4 to 4."""
    agreement = 0.0
    if hint is not None:
        agreement = hint.weight if hint.token == logits.tokens[0] else -hint.weight
    return 1.0, logit(logits.probs[0]), logits.entropy, agreement


def further_choices(
    logits: RankedLogits, expected: int
) -> Iterator[tuple[int, tuple[float, float, float]]]:
    """Further choices as they are tried, `expected` (looked up, -1 for nothing) first, with
    features if those before are wrong: 1, logit of the probability among what is left, whether it
    was looked up."""
    others = list(zip(logits.tokens[1:], logits.probs[1:], strict=True))
    if expected >= 0 and expected not in logits.tokens:
        others.append((expected, logits.prob(expected)))
    if len(others) > 1:
        others.sort(key=lambda other: (other[0] == expected, other[1]), reverse=True)
    remaining = max(1e-3, 1.0 - logits.probs[0])
    for token, prob in others:
        yield token, (1.0, logit(prob / remaining), 1.0 if token == expected else 0.0)
        remaining = max(1e-3, remaining - prob)
