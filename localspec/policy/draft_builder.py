"""Building the draft tree of one step.

Greedy text gets a tree, whose most probable nodes are verified (EAGLE-2: Li et al. 2024, section
4). A draft model reads one path of it; further choices are leaves, which cost no pass. Sampled text
gets a chain drawn from the draft model. It ends before a token is drawn that is not expected to
pay, and continues with predictions of lookup sources.
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
from localspec.policy.candidates import Candidate, Candidates, Lookup
from localspec.policy.model_state import ModelState
from localspec.policy.worth import Worth

MAX_PREDICTED, LEAST_PREDICTED = 7, 0.05
"""Most predicted tokens that a draft model reads along, and their least path probability."""
ALTERNATIVES = 4  # candidates of a lookup source at one position


class DraftBuilder(Candidates):
    """Builds the candidates of one step; the `localspec.decoding.sources.DraftContext` of its
    model.

    Attributes:
        branching: whether more than one branch may be verified.
        sizes: tokens that each pass of the model source read.
    """

    _model: ModelState

    def __init__(
        self,
        session: Session,
        lookups: Sequence[Lookup],
        worth: Worth,
        *,
        depth: int,
        leaves: int,
        drawn: bool,
    ) -> None:
        super().__init__(session, worth, depth=depth, leaves=leaves, drawn=drawn)
        self.branching = leaves > 1
        self.sizes: list[int] = []
        self._lookups = lookups
        self._end = self.root  # of the branch that the model source finds likeliest

    def add_lookups(self) -> None:
        """Add all predictions of the lookup sources."""
        for lookup in self._lookups:
            self._attach(lookup, self.root, lookup.predictions)
        if not self.branching or not self.candidates:
            return
        for lookup, position in zip(self._lookups, self._positions(self.root), strict=True):
            for token, chance in lookup.source.alternatives(position, ALTERNATIVES):
                if self._child(self.root, token) is None:
                    self._add(token, self.root, lookup.source.name, None, (), chance)

    def expand(self, model: ModelState) -> None:
        """Extend the likeliest branch by a model source as long as another pass pays."""
        self._model, source = model, model.source
        most = min(self.depth, source.room(self.session.context))
        ends = [self.root] if most > 0 else []
        self.root.sampler = DraftSampler(self.session, (), greedy=source.greedy)
        passes = source.start(self)
        while ends:
            self._end = ends[0]
            path = self._end.path()
            if not passes.knows(path):
                if path and not self._further_passes_pay(
                    self._end, self._end.reach, self._worth.of(self._reaches)
                ):
                    break
                passes.read(self, path)
            added: list[Candidate] = []
            for node in ends:
                path = node.path()
                if passes.knows(path):
                    added += self._add_choices(node, passes.row(path))
            ends = [node for node in added if node.depth < most and node.reach > 0.0]
            ends.sort(key=attrgetter("reach"), reverse=True)
            if added and not ends:
                self._end = added[0]
        self._extend_by_lookup(self.depth - self._end.depth)

    # DraftContext: what passes of the model use.

    def predicted_tokens(self, unread: int) -> list[int]:
        hint, seconds = self._hint(self._end), self._model.seconds
        if hint is None:
            return []
        lookup, most = hint[0], min(self.depth - self._end.depth - 1, MAX_PREDICTED)
        alone, one = seconds(unread), self._model.token_seconds
        tokens: list[int] = []
        saved = best = 0.0
        reach, count = 1.0, 0
        for prediction in islice(self._predictions(self._end, lookup), max(0, most)):
            tokens.append(prediction.token)
            reach *= lookup.estimator.predict(prediction.features)
            if reach < LEAST_PREDICTED:
                break
            saved += reach * one
            together = seconds(unread + len(tokens))
            if saved - (together - alone) > best and self._worth.affords(together, 1):
                best, count = saved - (together - alone), len(tokens)
        return tokens[:count]

    def record_pass(self, size: int) -> None:
        self.sizes.append(size)
        self._worth.spend(self._model.seconds(size))

    # Choices of the model source.

    def _add_choices(self, node: Candidate, row: Row) -> list[Candidate]:
        """Add the model's choices after a candidate."""
        sampler = self._sampler(node)
        if not sampler.open:
            return []
        try:
            logits = sampler.ranked(row, 3 if self.branching else 1)
        except DEAD_ENDS:
            return []
        hint, estimator = self._hint(node), self._model.first
        features = features_of(logits, None if hint is None else hint[1])
        chance = estimator.predict(features)
        token, proposal = logits.tokens[0], None
        if self.drawn:
            if not self._drawing_pays(node, chance):
                return []
            token, proposal = sampler.candidates(row, 1)[0]
        credit = self._model.source.credit
        first = self._add(token, node, credit, estimator, features, chance, proposal, first=True)
        if self.drawn or not self.branching:
            return [first]
        return [first, *self._add_siblings(node, logits)]

    def _drawing_pays(self, node: Candidate, chance: float) -> bool:
        """Whether a token with this chance should follow; decided before it is drawn."""
        if not self._worth.affords(0.0, node.depth + 1):
            return False
        reach = chance * node.reach
        stop = self._worth.of(self._reaches)
        if self._worth.of(self._reaches, (reach,)) > stop:
            return True
        return self._further_passes_pay(node, reach, stop, (reach,))

    def _sampler(self, node: Candidate) -> DraftSampler:
        """The sampler of the tokens after a candidate."""
        if node.sampler is None:
            assert node.parent is not None
            node.sampler = self._sampler(node.parent).fork(node.token)
        return node.sampler

    def _add_siblings(self, node: Candidate, logits: RankedLogits) -> Iterator[Candidate]:
        """Add the second and third choices, and the predicted token where it is another one."""
        hint, estimator = self._hint(node), self._model.second
        predicted = -1 if hint is None else hint[1].token
        for token, features in further_choices(logits, predicted):
            source = self._model.source.credit
            if hint is not None and token not in logits.tokens:
                source = hint[0].source.name
            chance = estimator.predict(features)
            sibling = self._add(token, node, source, estimator, features, chance)
            yield sibling
            if token == predicted and node is self.root and hint is not None:
                self._attach(hint[0], sibling, hint[0].predictions[1:])

    def _extend_by_lookup(self, room: int) -> None:
        """Add the firmest lookup's predictions after the end of the likeliest branch."""
        if room < 1 or self._end.reach == 0.0:
            return
        hint = self._hint(self._end)
        if hint is not None:
            self._attach(hint[0], self._end, islice(self._predictions(self._end, hint[0]), room))

    # Positions of the lookup sources.

    def _positions(self, node: Candidate) -> list[Any]:
        """Position of each lookup source after a candidate; sets the candidate's hint as well."""
        if node.positions is None:
            if node.parent is None:
                node.positions = [each.source.position(self.session) for each in self._lookups]
            else:
                before = zip(self._lookups, self._positions(node.parent), strict=True)
                node.positions = [each.source.advance(p, node.token) for each, p in before]
            for lookup, position in zip(self._lookups, node.positions, strict=True):
                first = next(lookup.source.predict(position), None)
                if first is not None and (node.hint is None or first.weight > node.hint[1].weight):
                    node.hint = lookup, first
        return node.positions

    def _predictions(self, node: Candidate, lookup: Lookup) -> Iterator[Prediction]:
        position = self._positions(node)[self._lookups.index(lookup)]
        return lookup.source.predict(position)

    def _hint(self, node: Candidate) -> tuple[Lookup, Prediction] | None:
        """The firmest prediction after a candidate, with its lookup."""
        self._positions(node)
        return node.hint

    # Value of further passes.

    def _further_passes_pay(
        self, node: Candidate, reach: float, now: float, known: tuple[float, ...] = ()
    ) -> bool:
        """Whether more passes after a candidate, whose path or next token has this probability, are
        worth more than `now`."""
        one, worth = self._model.token_seconds, self._worth
        if not worth.affords(one, node.depth + len(known) + 1):
            return False
        room, continuation = self.depth - node.depth, self._model.continuation
        return worth.further_passes_pay(now, self._reaches, known, reach, continuation, one, room)


def features_of(logits: RankedLogits, hint: Prediction | None) -> tuple[float, ...]:
    """Features of a first choice: 1, logit of its probability, entropy of the row in nats, and
    agreement with the `hint` of a lookup source, -4 to 4."""
    agreement = 0.0
    if hint is not None:
        agreement = hint.weight if hint.token == logits.tokens[0] else -hint.weight
    return 1.0, logit(logits.probs[0]), logits.entropy, agreement


def further_choices(
    logits: RankedLogits, predicted: int
) -> Iterator[tuple[int, tuple[float, float, float]]]:
    """Further choices in the order of verification, `predicted` (by a lookup; -1: none) first.

    Features, given that those before are wrong: 1, logit of the probability among the remaining
    tokens, whether a lookup predicts it."""
    others = list(zip(logits.tokens[1:], logits.probs[1:], strict=True))
    if predicted >= 0 and predicted not in logits.tokens:
        others.append((predicted, logits.prob(predicted)))
    if len(others) > 1:
        others.sort(key=lambda other: (other[0] == predicted, other[1]), reverse=True)
    remaining = max(1e-3, 1.0 - logits.probs[0])
    for token, prob in others:
        yield token, (1.0, logit(prob / remaining), 1.0 if token == predicted else 0.0)
        remaining = max(1e-3, remaining - prob)
