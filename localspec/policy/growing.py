"""The draft tree of one step while it grows.

Greedy text gets a tree, whose most probable nodes are verified (EAGLE-2: Li et al. 2024, section
4). A draft model reads one path of it; further choices are leaves, which cost no pass. Sampled text
gets a chain, drawn from the draft model, which ends before a token is drawn that is not expected to
pay, and goes on with what is looked up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from operator import attrgetter
from typing import Any

from localspec.decoding.draft_sampler import DraftSampler, RankedLogits
from localspec.decoding.sampling import DEAD_ENDS, Row
from localspec.decoding.session import Session
from localspec.decoding.sources import Prediction
from localspec.policy.acceptance_estimator import logit
from localspec.policy.asking import Asking
from localspec.policy.candidates import Candidate, Candidates, Looked
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

    _asked: Asking

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
        self._tip = self.root  # end of the branch that the model source thinks likeliest

    # What is asked of the sources.

    def look_up(self) -> None:
        """Everything that the lookup sources expect."""
        for looked in self._looked:
            self._hang(looked, self.root, looked.expected)
        if not self.branching or not self.candidates:
            return
        for looked, place in zip(self._looked, self._places(self.root), strict=True):
            for token, chance in looked.source.others(place, ALTERNATIVES):
                if self._child(self.root, token) is None:
                    self._add(token, self.root, looked.source.name, None, (), chance)

    def ask(self, asked: Asking) -> None:
        """Grow the tree where the text is likeliest to go, while asking the model source is worth
        it."""
        self._asked, source = asked, asked.source
        most = min(self.depth, source.room(self.session.context))
        ends = [self.root] if most > 0 else []
        self.root.sampler = DraftSampler(self.session, (), greedy=source.greedy)
        passes = source.start(self)
        while ends:
            self._tip = ends[0]
            path = self._tip.path()
            if not passes.knows(path):
                if path and not self._goes_on(self._tip):
                    break
                passes.read(self, path)
            offered: list[Candidate] = []
            for node in ends:
                path = node.path()
                if passes.knows(path):
                    offered += self._offer(node, passes.row(path))
            ends = [one for one in offered if one.depth < most and one.reach > 0.0]
            ends.sort(key=attrgetter("reach"), reverse=True)
            if offered and not ends:
                self._tip = offered[0]
        self._go_on(self.depth - self._tip.depth)

    # What passes of the model see.

    def primes(self, unread: int) -> list[int]:
        hint, seconds = self._hint(self._tip), self._asked.seconds
        if hint is None:
            return []
        looked, most = hint[0], min(self.depth - self._tip.depth - 1, PRIMES)
        alone, one = seconds(unread), self._asked.one
        tokens: list[int] = []
        saved = best = 0.0
        reach, count = 1.0, 0
        for prediction in islice(self._expected(self._tip, looked), max(0, most)):
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
        self.sizes.append(size)
        self._worth.spend(self._asked.seconds(size))

    # What the model says.

    def _offer(self, node: Candidate, row: Row) -> list[Candidate]:
        """Add what the model would say after a candidate."""
        sampler = self._sampler(node)
        if not sampler.open:
            return []
        try:
            logits = sampler.ranked(row, 3 if self.branching else 1)
        except DEAD_ENDS:
            return []
        hint, estimator = self._hint(node), self._asked.first
        features = features_of(logits, None if hint is None else hint[1])
        chance = estimator.predict(features)
        token, proposal = logits.tokens[0], None
        if self.drawn:
            if not self._worth_drawing(node, chance):
                return []
            token, proposal = sampler.candidates(row, 1)[0]
        credit = self._asked.source.credit
        first = self._add(token, node, credit, estimator, features, chance, proposal, first=True)
        if self.drawn or not self.branching:
            return [first]
        return [first, *self._siblings(node, logits)]

    def _worth_drawing(self, node: Candidate, chance: float) -> bool:
        """Whether a token with this chance should follow; asked before it is drawn."""
        if not self._worth.affords(0.0, node.depth + 1):
            return False
        reach = chance * node.reach
        stop = self._worth.of(self._reaches)
        if self._worth.of(self._reaches, (reach,)) > stop:
            return True
        return self._grows(stop, (reach,), reach, node)

    def _sampler(self, node: Candidate) -> DraftSampler:
        """What may be said after a candidate."""
        if node.sampler is None:
            assert node.parent is not None
            node.sampler = self._sampler(node.parent).forked(node.token)
        return node.sampler

    def _siblings(self, node: Candidate, logits: RankedLogits) -> Iterator[Candidate]:
        """The second and third choices, and what was looked up if it is another one."""
        hint, estimator = self._hint(node), self._asked.second
        expected = -1 if hint is None else hint[1].token
        for token, features in further_choices(logits, expected):
            source = self._asked.source.credit
            if hint is not None and token not in logits.tokens:
                source = hint[0].source.name
            one = self._add(token, node, source, estimator, features, estimator.predict(features))
            yield one
            if token == expected and node is self.root and hint is not None:
                self._hang(hint[0], one, hint[0].expected[1:])

    def _go_on(self, room: int) -> None:
        """What the lookup sources expect after the end of the likeliest branch."""
        if room < 1 or self._tip.reach == 0.0:
            return
        hint = self._hint(self._tip)
        if hint is not None:
            self._hang(hint[0], self._tip, islice(self._expected(self._tip, hint[0]), room))

    # Where the lookup sources are.

    def _places(self, node: Candidate) -> list[Any]:
        """The place of each lookup source after a candidate; finds its hint as well."""
        if node.places is None:
            if node.parent is None:
                node.places = [each.source.place(self.session) for each in self._looked]
            else:
                above = zip(self._looked, self._places(node.parent), strict=True)
                node.places = [each.source.follow(place, node.token) for each, place in above]
            for looked, place in zip(self._looked, node.places, strict=True):
                found = next(looked.source.expected(place), None)
                if found is not None and (node.hint is None or found.weight > node.hint[1].weight):
                    node.hint = looked, found
        return node.places

    def _expected(self, node: Candidate, looked: Looked) -> Iterator[Prediction]:
        place = self._places(node)[self._looked.index(looked)]
        return looked.source.expected(place)

    def _hint(self, node: Candidate) -> tuple[Looked, Prediction] | None:
        """What is expected most firmly after a candidate, and by whom."""
        self._places(node)
        return node.hint

    # What more of them are worth.

    def _goes_on(self, node: Candidate) -> bool:
        """Whether passes after a candidate are worth more than what there is."""
        return self._grows(self._worth.of(self._reaches), (), node.reach, node)

    def _grows(self, now: float, known: tuple[float, ...], reach: float, node: Candidate) -> bool:
        one, worth = self._asked.one, self._worth
        if not worth.affords(one, node.depth + len(known) + 1):
            return False
        room, onward = self.depth - node.depth, self._asked.onward
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
