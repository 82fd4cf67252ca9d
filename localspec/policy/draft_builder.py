"""Building the draft tree of one step.

Greedy text gets a tree, whose most probable nodes are verified (EAGLE-2: Li et al. 2024, section
4). A draft model reads one path of it; further choices are leaves, which cost no pass. Sampled text
gets a chain drawn from the draft model. It ends before drawing a token that is not expected to
pay, and continues with predictions of lookup sources.
"""

from bisect import insort
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from operator import attrgetter
from typing import Any

from localspec.decoding.distribution import Distribution
from localspec.decoding.draft_sampler import DraftSampler, RankedLogits
from localspec.decoding.sampling import DEAD_ENDS, Row
from localspec.decoding.session import Session
from localspec.decoding.sources import Prediction
from localspec.decoding.tree import ROOT, TokenTree
from localspec.policy.acceptance_estimator import AcceptanceEstimator, logit
from localspec.policy.candidates import Candidate, Lookup
from localspec.policy.model_state import ModelState
from localspec.policy.worth import Bid, Worth

MAX_PREDICTED, LEAST_PREDICTED = 7, 0.05
"""Maximum predicted tokens that a draft model reads in a pass; their minimum path probability."""
ALTERNATIVES = 4  # candidates of a lookup source at one position
LEAST_REACH = 0.01  # candidates less likely than this are dropped

_reach_of = attrgetter("reach")


class DraftBuilder:
    """The candidates of one step, a tree below `root`, parents before children; the
    `localspec.decoding.sources.DraftContext` of its model.

    Args:
        depth: longest path.
        leaves: most branches.
        drawn: whether tokens of a model source are drawn from its distribution.

    Attributes:
        children: by parent, elder siblings before younger ones; no entry for a leaf.
        sizes, seconds: of each pass of the model source, in tokens and as expected.
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
        self.session, self.depth, self.drawn = session, depth, drawn
        self.root = Candidate(-1, None, "")
        self.candidates: list[Candidate] = []
        # A dict here: lists in the candidates would create reference cycles.
        self.children: dict[Candidate, list[Candidate]] = {}
        self.sizes: list[int] = []
        self.seconds: list[float] = []
        self._lookups, self._worth, self._leaves = lookups, worth, leaves
        self._branching = leaves > 1
        self._reaches: list[float] = []  # of all candidates, ascending
        self._end = self.root  # of the branch that the model source finds likeliest

    def add_lookups(self) -> None:
        """Add all predictions of the lookup sources."""
        for lookup in self._lookups:
            self._attach(lookup, self.root, lookup.predictions)
        if not self._branching or not self.candidates:
            return
        for lookup, position in zip(self._lookups, self._positions(self.root), strict=True):
            for token, chance in lookup.source.alternatives(position, ALTERNATIVES):
                if self._child(self.root, token) is None:
                    self._add(token, self.root, lookup.source.name, None, (), chance)

    def expand(self, model: ModelState) -> None:
        """Extend the likeliest branch with a model source while another pass pays."""
        self._model, source = model, model.source
        most = min(self.depth, source.room(self.session.context))
        ends = [self.root] if most > 0 else []
        self.root.sampler = DraftSampler(self.session, (), greedy=source.greedy)
        source.start(self)
        while ends:
            self._end = ends[0]
            path = self._end.path()
            if not source.knows(path):
                if path and not self._further_passes_pay(
                    self._end, self._end.reach, self._worth.of(self._reaches)
                ):
                    break
                if size := source.read(self, path):
                    seconds = model.seconds(size)
                    self.sizes.append(size)
                    self.seconds.append(seconds)
                    self._worth.spend(seconds)
            added: list[Candidate] = []
            for node in ends:
                path = node.path()
                if source.knows(path):
                    added += self._add_choices(node, source.row(path))
            ends = [node for node in added if node.depth < most and node.reach > 0.0]
            ends.sort(key=_reach_of, reverse=True)
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

    # Choices of the model source.

    def _add_choices(self, node: Candidate, row: Row) -> list[Candidate]:
        """Add the model's choices after a candidate."""
        sampler = self._sampler(node)
        if not sampler.open:
            return []
        try:
            logits = sampler.ranked(row, 3 if self._branching else 1)
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
        credit = self._model.credit
        first = self._add(token, node, credit, estimator, features, chance, proposal, first=True)
        if self.drawn or not self._branching:
            return [first]
        return [first, *self._add_siblings(node, logits, hint)]

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

    def _add_siblings(
        self, node: Candidate, logits: RankedLogits, hint: tuple[Lookup, Prediction] | None
    ) -> Iterator[Candidate]:
        """Add the second and third choices, and the predicted token if it is a different one."""
        estimator, predicted = self._model.second, -1 if hint is None else hint[1].token
        for token, features in further_choices(logits, predicted):
            source = self._model.credit
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
        """Add a chain of predictions below a candidate, while they are likely enough."""
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

    # Selection for verification.

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
