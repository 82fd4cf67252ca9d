"""The draft tree of one step while it grows: what is asked of the sources, and for how long."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

from localspec.decoding.auto_sources import (
    LookupSource,
    ModelSource,
    Prediction,
    RankedLogits,
    WindowSource,
)
from localspec.decoding.distribution import Distribution
from localspec.decoding.interfaces import Expectation
from localspec.decoding.session import Session
from localspec.decoding.tree import ROOT, TokenTree
from localspec.planning.acceptance_estimator import AcceptanceEstimator, logit
from localspec.planning.answer_state import ModelState
from localspec.planning.candidates import Candidates
from localspec.planning.draft_value import DraftValue
from localspec.planning.lookup_places import LookupPlaces
from localspec.planning.pair_profile import AGREES, PairProfile, SourceProfile
from localspec.planning.plan import AdaptivePlan, Lesson, PlannedDraft

SECOND = "second"
"""Kind of estimator that every model source has: of its second and further choices. Where one of
that name and the kind of the first choice is there as well, that is taken."""
UNLIKELY = "the draft model was asked, and its tokens were too unlikely to be verified"
PRIMES, FAINT = 7, 0.05
"""Most expected tokens that a draft model reads along, and how likely it has to be at least that
it says the same up to there."""
AT_ONCE = 4
"""Most candidates that one pass of a draft model reads."""
ALTERNATIVES = 4
"""Candidates of a lookup source at one place."""
TAUGHT = 2
"""Levels whose agreement of lookup and model source is learned from: deeper ones are alike."""


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


class GrowingTree:
    """The candidates of one step, and what they are worth together.

    Implements `localspec.decoding.auto_sources.Growing`.
    """

    def __init__(
        self,
        session: Session,
        plan: AdaptivePlan,
        lookups: Sequence[LookupSource],
        profile: PairProfile,
    ) -> None:
        assert plan.costs is not None
        self.session = session
        self.drawn = plan.drawn
        self.branching = plan.leaves > 1
        self._plan = plan
        self._lookups = lookups
        self._profile = profile
        self._costs = plan.costs
        self._value = DraftValue(plan)
        self._candidates = Candidates()
        self._places = LookupPlaces(lookups, session, self._candidates)
        self._sizes: list[int] = []
        # Seconds of a pass of the asked source by size, and those that were looked up.
        self._seconds_of: Callable[[int], float] = float
        self._passes: dict[int, float] = {}
        self._lessons: list[Lesson] = []
        self._reviewed: list[Lesson] = []
        self._asked: ModelSource | None = None
        self._credit = ""
        self._first: AcceptanceEstimator | None = None
        self._second: AcceptanceEstimator | None = None
        self._asked_profile: SourceProfile | None = None
        self._held = 0  # tokens that passes of the asked source look back at
        self._offered: list[int] = []  # candidates of the latest level
        self._tip = ROOT  # end of the branch that the model source thinks likeliest

    # What is asked of the sources.

    def look_up(self) -> None:
        """Everything that the lookup sources expect, and what else may come."""
        for lookup in self._lookups:
            self._hang(lookup, ROOT, self._plan.predictions.get(lookup.name, ()))
        candidates = self._candidates
        if not self.branching or not candidates.all:
            return
        for lookup, place in self._places.at(ROOT):
            for token, chance in lookup.others(place, ALTERNATIVES):
                if candidates.child(ROOT, token) is None:
                    candidates.add(token, ROOT, lookup.name, None, (), chance)

    def ask(self, source: ModelSource) -> None:
        """Grow the tree where the text is likeliest to go, for as long as asking the model source
        is worth it."""
        self._asked, self._credit = source, source.credit
        self._held = source.held(self.session)
        self._asked_profile = profile = self._profile.source(source)
        self._seconds_of = self._profile.pass_seconds(profile, self._held)
        kind, estimators = source.kind(self.session), profile.estimators
        self._first = estimators[kind]
        self._second = estimators.get(f"{SECOND} {kind}", estimators[SECOND])
        candidates, most = self._candidates, min(self._plan.depth, source.room(self.session))
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
            self._offered, newest = [], len(candidates.all)
            source.expand(self, nodes)
            left = [node for node in ends if node not in nodes] if returns else []
            ends = candidates.likeliest([*left, *self._offered], most)
            if self._offered:
                self._tip = ends[0] if ends else self._offered[0]
        self._go_on(self._plan.depth - candidates.depth(self._tip))

    def review(self, source: ModelSource) -> None:
        """See how a model source would have done lately."""
        estimator = self._profile.source(source).estimators[source.kind(self.session)]
        found = source.review(self.session, ModelState.REVIEWED)
        self._reviewed = [Lesson(estimator, features, right) for features, right in found]

    # What the model source sees.

    def token(self, node: int) -> int:
        return self._candidates.all[node].token

    def parent(self, node: int) -> int:
        return self._candidates.all[node].parent

    def path(self, node: int) -> list[int]:
        return self._candidates.path(node)

    def hint(self, node: int) -> Prediction | None:
        found = self._places.hint(node)
        return None if found is None else found[1]

    def primes(self, node: int, unread: int) -> list[int]:
        assert self._asked_profile is not None
        assert self._asked is not None
        found = self._places.hint(node)
        if found is None:
            return []
        lookup = found[0]
        most = min(self._plan.depth - self._candidates.depth(node) - 1, PRIMES)
        alone, one = self._pass_seconds(unread), self._pass_seconds(1)
        estimator = self._profile.source(lookup).estimators[AGREES]
        tokens: list[int] = []
        saved = best = 0.0
        reach, count = 1.0, 0
        for prediction in islice(self._places.expected(node, lookup), max(0, most)):
            tokens.append(prediction.token)
            reach *= estimator.predict(prediction.features)
            if reach < FAINT:
                break
            saved += reach * one
            together = self._pass_seconds(unread + len(tokens))
            worth = saved - (together - alone)
            if worth > best and self._value.affords(together, 1):
                best, count = worth, len(tokens)
        return tokens[:count]

    def read(self, size: int) -> None:
        self._sizes.append(size)
        self._value.spend(self._pass_seconds(size))

    def dearer_together(self, size: int) -> bool:
        """Whether a pass over so many tokens costs more than one pass for each: some kernels take
        longer over two tokens than twice over one."""
        assert self._asked_profile is not None
        costs, held = self._asked_profile.costs, self._held
        return 1 < size <= 4 and size * costs.seconds(1, held) < costs.seconds(size, held)

    def worth_drawing(self, node: int, features: tuple[float, ...]) -> bool:
        assert self._first is not None
        candidates, value = self._candidates, self._value
        if not value.affords(0.0, candidates.depth(node) + 1):
            return False
        reach = self._first.predict(features) * candidates.reach(node)
        stop = value.of(candidates.reaches)
        if value.of(candidates.reaches, (reach,)) > stop:
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
        assert self._first is not None
        candidates, hinted = self._candidates, self._places.hint(node)
        if hinted is not None and candidates.depth(node) < TAUGHT:
            lookup, hint = hinted
            agrees = self._profile.source(lookup).estimators[AGREES]
            self._lessons.append(Lesson(agrees, hint.features, hint.token == token))
        first = candidates.add(
            token,
            node,
            self._credit,
            self._first,
            features,
            self._first.predict(features),
            proposal=proposal,
            ends=self.session.ends(token),
            first=True,
        )
        self._offered.append(first)
        if self.branching and logits is not None:
            self._siblings(node, logits, hinted)
        return first

    # Candidates.

    def _hang(self, lookup: LookupSource, parent: int, predictions: Iterable[Prediction]) -> None:
        """What a lookup source expects below a candidate."""
        estimator = self._profile.source(lookup).estimators[lookup.kind(self.session)]
        self._candidates.hang(predictions, parent, lookup.name, estimator)

    def _siblings(
        self,
        node: int,
        logits: RankedLogits,
        hinted: tuple[LookupSource, Prediction] | None,
    ) -> None:
        """The second and third choices, and what was looked up if it is another one."""
        assert self._asked is not None
        estimator = self._second
        assert estimator is not None
        expected = -1 if hinted is None else hinted[1].token
        for token, features in further_choices(logits, expected):
            source = self._credit
            if hinted is not None and token not in logits.tokens:
                source = hinted[0].name
            number = self._candidates.add(
                token,
                node,
                source,
                estimator,
                features,
                estimator.predict(features),
                ends=self.session.ends(token),
            )
            self._offered.append(number)
            if token == expected and node == ROOT and hinted is not None:
                self._hang(hinted[0], number, self._plan.predictions[hinted[0].name][1:])

    def _go_on(self, room: int) -> None:
        """What the lookup sources expect behind the end of the likeliest branch."""
        if room < 1 or self._candidates.reach(self._tip) == 0.0:
            return
        if not self.branching:  # then there is room for one of them
            hinted = self._places.hint(self._tip)
            lookups = [] if hinted is None else [hinted[0]]
        else:
            lookups = list(self._lookups)
        for lookup in lookups:
            expected = self._places.expected(self._tip, lookup)
            self._hang(lookup, self._tip, islice(expected, room))

    def _open(self, windows: Sequence[WindowSource], tree: TokenTree) -> None:
        """Add the window, where the account covers it beside what is verified."""
        shape = self._plan.window
        if shape is None:
            return
        branches = 0 if not len(tree) else 1 + max(n[-1] for n in tree.leaf_numbers())
        room = self._plan.depth - len(tree)
        for source in windows:
            fits = shape.rows <= room and branches + shape.columns <= self._plan.leaves
            if fits and self._value.affords(0.0, len(tree) + shape.rows):
                source.open_window(self.session, tree, *shape)

    # What more of them are worth.

    def _pass_seconds(self, size: int) -> float:
        """Of a pass of the asked source."""
        seconds = self._passes.get(size)
        if seconds is None:
            seconds = self._passes[size] = self._seconds_of(size)
        return seconds

    def _pass_cost(self, size: int) -> float:
        """Tokens that could be had in that time."""
        return self._plan.rate * self._pass_seconds(size)

    def _goes_on(self, node: int) -> bool:
        """Whether passes behind a candidate are worth more than what there is."""
        reaches = self._candidates.reaches
        return self._grows(self._value.of(reaches), (), self._candidates.reach(node), node)

    def _grows(self, now: float, known: tuple[float, ...], reach: float, node: int) -> bool:
        depth = self._candidates.depth(node)
        if not self._value.affords(self._pass_seconds(1), depth + len(known) + 1):
            return False
        one, room = self._pass_cost(1), self._plan.depth - depth
        return self._value.grows(now, self._candidates.reaches, known, reach, one, room)

    def _worth_reading(self, nodes: list[int], source: ModelSource) -> list[int]:
        """The best candidate, and those whose reading along in the same pass pays."""
        if len(nodes) == 1:
            return nodes
        candidates, onward = self._candidates, self._plan.onward
        taken, reaches = nodes[:1], [candidates.reach(nodes[0]) * onward]
        cost, value = self._pass_cost(1), 0.0
        for node in nodes[1 : min(AT_ONCE, source.branches(self.session))]:
            dearer, reach = self._pass_cost(len(taken) + 1), candidates.reach(node) * onward
            if reach <= dearer - cost:
                break
            if not self._value.affords(self._pass_seconds(len(taken) + 1), 1):
                break
            value = value or self._value.of(candidates.reaches, reaches)
            with_it = self._value.of(candidates.reaches, [*reaches, reach])
            if with_it - value <= dearer - cost:
                break
            taken.append(node)
            reaches.append(reach)
            cost, value = dearer, with_it
        return taken

    def finished(self, windows: Sequence[WindowSource] = ()) -> PlannedDraft:
        """The tree of what is worth verifying, and all there is to learn from.

        Args:
            windows: sources whose window goes along, if the plan has one.
        """
        candidates = self._candidates.all
        if candidates:
            self._costs, count = self._profile.present_costs(
                self._costs, len(self.session.context), lambda: self._value.bid(candidates)
            )
            self._value.reprice(self._costs, count)
        kept, padding = self._value.select(candidates)
        tree, chances = TokenTree(), {}
        nodes = {ROOT: ROOT}
        tokens = 1.0
        for number in kept:
            candidate = candidates[number]
            node = tree.add(
                candidate.token, nodes[candidate.parent], candidate.source, candidate.proposal
            )
            nodes[number] = node
            chances[node] = candidate.chance
            tokens += candidate.reach
        self._open(windows, tree)
        filler, parent = self.session.context[-1], tree.tip()
        for _ in range(len(kept) + padding - len(tree)):
            parent = tree.pad(filler, parent)
        target_seconds = self._costs.least[len(tree) + 1]
        passes = [self._pass_cost(size) for size in self._sizes]
        return PlannedDraft(
            tree,
            UNLIKELY if passes else "",
            Expectation(tokens, target_seconds + sum(passes) / self._plan.rate, chances),
            candidates,
            self._candidates.children,
            self._sizes,
            tokens - self._plan.rate * target_seconds - sum(passes[1:]) - self._plan.worth,
            self._lessons,
            self._reviewed,
        )
