"""The draft tree of one step: what is worth verifying of all that the sources propose.

Tokens per second in the long run are maximised by taking, at every decision, what maximises
expected tokens − rate × expected seconds, where the rate is the tokens per second that are to be
had on average (the renewal-reward argument; Dinkelbach 1967 for the ratio). So every choice
becomes a sum: a draft of k tokens with chances r₁ ≥ … ≥ r_k of being reached and accepted is worth
1 + Σ r_i − rate · T(k + 1), and one more pass of a draft model has to raise that by more than
rate × its seconds.

Greedy text gets a tree: the draft model's choices and what the lookup sources expect instead or
afterwards; the most probable of these are verified (EAGLE-2: Li et al. 2024, section 4). Sampled
text gets a chain, drawn from the draft model, that ends before a token is drawn which is not
expected to pay, and goes on with what is looked up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from typing import Any

from localspec.decoding.distribution import Distribution
from localspec.decoding.interfaces import (
    Draft,
    Expectation,
    LookupSource,
    ModelSource,
    Plan,
    Prediction,
    RankedLogits,
)
from localspec.decoding.sampling import Rows
from localspec.decoding.session import Session
from localspec.decoding.tree import ROOT, TokenTree
from localspec.planning.acceptance_estimator import AcceptanceEstimator, logit
from localspec.planning.pair_profile import AGREES, PairProfile, SourceProfile
from localspec.planning.plan import AUTO, FARTHEST, AdaptivePlan, Candidate, Lesson, PlannedDraft

LEAST_REACH = 0.01
"""Candidates less likely than this are not worth keeping in mind."""
PRIMES = 7
"""Most expected tokens that a draft model reads along."""
AT_ONCE = 4
"""Most candidates that one pass of a draft model reads."""
REVIEWED = 8
"""Tokens that a model source is tried on while it is not asked."""
ALTERNATIVES = 4
"""Candidates of a lookup source at one place."""
TAUGHT = 2
"""Levels whose agreement of lookup and model source is learned from: deeper ones are alike."""


class DraftTreeBuilder:
    """Makes trees of what all sources propose, as far as an `AdaptivePlan` lets them.

    Implements `localspec.decoding.interfaces.Drafter`.
    """

    name = AUTO

    def __init__(
        self,
        lookups: Sequence[LookupSource],
        models: Sequence[ModelSource],
        profile: PairProfile,
    ) -> None:
        self._lookups = lookups
        self._models = {source.name: source for source in models}
        self._sources = (*lookups, *models)
        self._profile = profile
        self.hidden = tuple(sorted({layer for s in self._sources for layer in s.hidden}))

    @property
    def native_seconds(self) -> float:
        return sum(source.native_seconds for source in self._sources)

    def begin(self, prompt: Sequence[int]) -> None:
        for source in self._sources:
            source.begin(prompt)

    def draft(self, session: Session, plan: Plan) -> Draft:
        assert isinstance(plan, AdaptivePlan), "only the adaptive planner asks this drafter"
        growing = _GrowingTree(session, plan, self._lookups, self._profile)
        if plan.reviews is not None:
            growing.review(self._models[plan.reviews])
        if plan.asks is not None:
            growing.ask(self._models[plan.asks])
        else:
            growing.look_up()
        return growing.finished()

    def verifying(
        self, session: Session, plan: Plan, draft: Draft
    ) -> AbstractContextManager[object]:
        assert isinstance(plan, AdaptivePlan)
        assert plan.asks is not None, "only a model source can go on while the target verifies"
        return self._models[plan.asks].verifying(session, draft.tree)

    def committed(self, context: Sequence[int], hidden: Mapping[int, Rows]) -> None:
        for source in self._sources:
            source.committed(context, hidden)


class _GrowingTree:
    """The candidates of one step, and what they are worth together.

    Implements `localspec.decoding.interfaces.Growing`.
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
        self._least = plan.costs.least
        self._rate = plan.rate
        self._candidates: list[Candidate] = []
        self._reaches: list[float] = []
        self._summed = 0.0
        self._children: dict[int, list[int]] = {}
        self._left: dict[int, float] = {}  # probability that none of the children is accepted
        self._places: dict[int, list[Any]] = {}
        self._hints: dict[int, tuple[LookupSource, Prediction] | None] = {}
        self._sizes: list[int] = []
        self._lessons: list[Lesson] = []
        self._reviewed: list[Lesson] = []
        self._asked: ModelSource | None = None
        self._first: AcceptanceEstimator | None = None
        self._asked_profile: SourceProfile | None = None
        self._offered: list[int] = []  # candidates of the latest level
        self._tip = ROOT  # end of the branch that the model source thinks likeliest

    # What is asked of the sources.

    def look_up(self) -> None:
        """Everything that the lookup sources expect, and what else may come."""
        for lookup in self._lookups:
            self._hang(lookup, ROOT, self._plan.predictions.get(lookup.name, ()))
        if not self.branching or not self._candidates:
            return
        for lookup, place in zip(self._lookups, self._places_at(ROOT), strict=True):
            for token, chance in lookup.others(place, ALTERNATIVES):
                if self._child(ROOT, token) is None:
                    self._add(token, ROOT, lookup.name, None, (), chance=chance)

    def ask(self, source: ModelSource) -> None:
        """Grow the tree level by level, for as long as asking the model source is worth it."""
        plan, self._asked = self._plan, source
        self._asked_profile = profile = self._profile.source(source)
        self._first = profile.estimators[source.kind(self.session)]
        depth, most = 0, min(plan.depth, source.room(self.session))
        source.start(self)
        nodes = [ROOT]
        while nodes and depth < most:
            known = [node for node in nodes if source.knows(self, node)]
            if known:
                nodes = known
            elif depth and not self._worth_a_pass(nodes[0]):
                break
            else:
                nodes = self._worth_reading(nodes, source)
            self._offered = []
            source.expand(self, nodes)
            nodes = self._best_of(self._offered)
            depth += 1
            if nodes:
                self._tip = nodes[0]
        self._go_on(plan.depth - self._depth(self._tip))

    def review(self, source: ModelSource) -> None:
        """See how a model source would have done lately."""
        estimator = self._profile.source(source).estimators[source.kind(self.session)]
        found = source.review(self.session, REVIEWED)
        self._reviewed = [Lesson(estimator, features, right) for features, right in found]

    # What the model source sees.

    def token(self, node: int) -> int:
        return self._candidates[node].token

    def parent(self, node: int) -> int:
        return self._candidates[node].parent

    def path(self, node: int) -> list[int]:
        tokens = []
        while node != ROOT:
            candidate = self._candidates[node]
            tokens.append(candidate.token)
            node = candidate.parent
        tokens.reverse()
        return tokens

    def hint(self, node: int) -> Prediction | None:
        found = self._hint(node)
        return None if found is None else found[1]

    def primes(self, node: int, unread: int) -> list[int]:
        assert self._asked_profile is not None
        assert self._asked is not None
        found = self._hint(node)
        if found is None:
            return []
        lookup = found[0]
        costs, held = self._asked_profile.costs, len(self.session.context)
        most = min(self._plan.depth - self._depth(node) - 1, PRIMES)
        alone, one = costs.seconds(unread, held), costs.seconds(1, held)
        estimator = self._profile.source(lookup).estimators[AGREES]
        place = self._places_at(node)[self._lookups.index(lookup)]
        tokens: list[int] = []
        saved = best = 0.0
        reach, count = 1.0, 0
        for prediction in islice(lookup.expected(place), max(0, most)):
            tokens.append(prediction.token)
            reach *= estimator.predict(prediction.features)
            saved += reach * one
            worth = saved - (costs.seconds(unread + len(tokens), held) - alone)
            if worth > best:
                best, count = worth, len(tokens)
        return tokens[:count]

    def read(self, size: int) -> None:
        self._sizes.append(size)

    def dearer_together(self, size: int) -> bool:
        """Whether a pass over so many tokens costs more than one pass for each: some kernels take
        longer over two tokens than twice over one."""
        assert self._asked_profile is not None
        costs, held = self._asked_profile.costs, len(self.session.context)
        return 1 < size <= 4 and size * costs.seconds(1, held) < costs.seconds(size, held)

    def worth_drawing(self, node: int, features: tuple[float, ...]) -> bool:
        assert self._first is not None
        reach = self._first.predict(features) * self._reach(node)
        stop = self._value()
        return self._value((reach,)) > stop or self._grows(stop, (reach,), reach, node)

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
        hinted = self._hint(node)
        if hinted is not None and self._depth(node) < TAUGHT:
            lookup, hint = hinted
            agrees = self._profile.source(lookup).estimators[AGREES]
            self._lessons.append(Lesson(agrees, hint.features, hint.token == token))
        ends = self.session.ends(token)
        chance = self._first.predict(features)
        first = self._add(
            token,
            node,
            self._asked.credit,
            self._first,
            features,
            chance=chance,
            proposal=proposal,
            ends=ends,
            first=True,
        )
        self._offered.append(first)
        if self.branching and logits is not None:
            self._siblings(node, logits, hinted)
        return first

    # Candidates.

    def _add(
        self,
        token: int,
        parent: int,
        source: str,
        estimator: AcceptanceEstimator | None,
        features: tuple[float, ...],
        *,
        chance: float,
        proposal: Distribution | None = None,
        ends: bool = False,
        first: bool = False,
    ) -> int:
        """Put a candidate below another one, behind its elder siblings.

        Args:
            ends: whether it ends the answer: accepting it then brings nothing, as the target's
                own token behind it is lost.
        """
        number, left = len(self._candidates), self._left.get(parent, 1.0)
        reach = 0.0 if ends else self._reach(parent) * left * chance
        depth = self._depth(parent) + 1
        self._candidates.append(
            Candidate(
                token, parent, depth, source, estimator, features, chance, reach, proposal, first
            )
        )
        self._reaches.append(reach)
        self._summed += reach
        self._left[parent] = left * (1.0 - chance)
        self._children.setdefault(parent, []).append(number)
        return number

    def _child(self, node: int, token: int) -> int | None:
        """The candidate below another one that is this token."""
        children = self._children.get(node, ())
        return next((n for n in children if self._candidates[n].token == token), None)

    def _reach(self, node: int) -> float:
        return 1.0 if node == ROOT else self._candidates[node].reach

    def _depth(self, node: int) -> int:
        return 0 if node == ROOT else self._candidates[node].depth

    def _hang(self, lookup: LookupSource, parent: int, predictions: Sequence[Prediction]) -> None:
        """What a lookup source expects below a candidate, as far as it is likely enough."""
        estimator = self._profile.source(lookup).estimators[lookup.kind(self.session)]
        reach = self._reach(parent) * self._left.get(parent, 1.0)
        for token, features, _ in predictions:
            there = self._child(parent, token)
            if there is not None:
                parent, reach = there, self._reach(there)
                continue
            chance = estimator.predict(features)
            reach *= chance
            if reach < LEAST_REACH:
                break
            parent = self._add(token, parent, lookup.name, estimator, features, chance=chance)

    def _siblings(
        self,
        node: int,
        logits: RankedLogits,
        hinted: tuple[LookupSource, Prediction] | None,
    ) -> None:
        """The second and third choices, and what was looked up if it is another one."""
        assert self._asked is not None
        assert self._asked_profile is not None
        others = list(zip(logits.tokens[1:], logits.probs[1:], strict=True))
        expected = -1 if hinted is None else hinted[1].token
        if hinted is not None and expected not in logits.tokens:
            others.append((expected, logits.prob(expected)))
        if len(others) > 1:
            others.sort(key=lambda other: (other[0] == expected, other[1]), reverse=True)
        estimator = self._asked_profile.estimators[SECOND]
        remaining = max(1e-3, 1.0 - logits.probs[0])
        for token, prob in others:
            features = (1.0, logit(prob / remaining), float(token == expected))
            chance = estimator.predict(features)
            source = self._asked.credit
            if hinted is not None and token not in logits.tokens:
                source = hinted[0].name
            number = self._add(
                token,
                node,
                source,
                estimator,
                features,
                chance=chance,
                ends=self.session.ends(token),
            )
            self._offered.append(number)
            if token == expected and node == ROOT and hinted is not None:
                self._hang(hinted[0], number, self._plan.predictions[hinted[0].name][1:])
            remaining = max(1e-3, remaining - prob)

    def _go_on(self, room: int) -> None:
        """What the lookup sources expect behind the end of the likeliest branch."""
        if room < 1 or (self._tip != ROOT and self._reach(self._tip) == 0.0):
            return
        if not self.branching:  # then there is room for one of them
            hinted = self._hint(self._tip)
            lookups = [] if hinted is None else [hinted[0]]
        else:
            lookups = list(self._lookups)
        places = self._places_at(self._tip)
        for lookup in lookups:
            place = places[self._lookups.index(lookup)]
            self._hang(lookup, self._tip, list(islice(lookup.expected(place), room)))

    def _places_at(self, node: int) -> list[Any]:
        """Where each of the lookup sources is behind a candidate."""
        found = self._places.get(node)
        if found is None:
            if node == ROOT:
                found = [lookup.place(self.session) for lookup in self._lookups]
            else:
                candidate = self._candidates[node]
                above = self._places_at(candidate.parent)
                pairs = zip(self._lookups, above, strict=True)
                found = [lookup.follow(place, candidate.token) for lookup, place in pairs]
            self._places[node] = found
        return found

    def _hint(self, node: int) -> tuple[LookupSource, Prediction] | None:
        """What is expected most firmly behind a candidate, and by whom."""
        if node in self._hints:
            return self._hints[node]
        best: tuple[LookupSource, Prediction] | None = None
        for lookup, place in zip(self._lookups, self._places_at(node), strict=True):
            prediction = next(lookup.expected(place), None)
            if prediction is not None and (best is None or prediction.weight > best[1].weight):
                best = lookup, prediction
        self._hints[node] = best
        return best

    # What they are worth.

    def _value(self, further: Sequence[float] = ()) -> float:
        """What the candidates, and further ones with such reach, are worth."""
        least, rate, most = self._least, self._rate, self._plan.depth
        if self.drawn:
            count = len(self._reaches) + len(further)
            return 1.0 + self._summed + sum(further) - rate * least[min(count, most) + 1]
        reaches = sorted([*self._reaches, *further], reverse=True)
        total, best = 1.0, 1.0 - rate * least[1]
        for n, reach in enumerate(reaches[:most], 2):
            total += reach
            worth = total - rate * least[n]
            if worth > best:
                best = worth
        return best

    def _pass_cost(self, size: int) -> float:
        """Tokens that could be had in the time of a pass of the asked source."""
        assert self._asked_profile is not None
        seconds = self._asked_profile.costs.seconds(size, len(self.session.context))
        return self._rate * (seconds + self._profile.row_overhead)

    def _worth_a_pass(self, node: int) -> bool:
        """Whether reading a candidate in the draft model is expected to pay."""
        return self._grows(self._value(), (), self._reach(node), node)

    def _grows(self, now: float, known: tuple[float, ...], reach: float, node: int) -> bool:
        """Whether some number of further passes is worth more than `now`."""
        further, cost, one = list(known), 0.0, self._pass_cost(1)
        room = self._plan.depth - self._depth(node)
        for _ in range(min(FARTHEST, room - len(known))):
            reach *= self._plan.onward
            cost += one
            if reach + 0.2 < cost and not self.drawn:
                break  # what is left to gain is less than what is spent
            further.append(reach)
            if self._value(further) - cost > now:
                return True
        return False

    def _worth_reading(self, nodes: list[int], source: ModelSource) -> list[int]:
        """The best candidate, and those whose reading along in the same pass pays."""
        if len(nodes) == 1:
            return nodes
        taken = nodes[:1]
        reaches = [self._reach(nodes[0]) * self._plan.onward]
        cost, value = self._pass_cost(1), 0.0
        for node in nodes[1 : min(AT_ONCE, source.branches(self.session))]:
            dearer = self._pass_cost(len(taken) + 1)
            reach = self._reach(node) * self._plan.onward
            if reach <= dearer - cost:
                break
            value = value or self._value(reaches)
            with_it = self._value([*reaches, reach])
            if with_it - value <= dearer - cost:
                break
            taken.append(node)
            reaches.append(reach)
            cost, value = dearer, with_it
        return taken

    def _best_of(self, nodes: Sequence[int]) -> list[int]:
        """Candidates that the text may go on behind, the likeliest first."""
        live = [node for node in nodes if self._candidates[node].reach > 0.0]
        if len(live) > 1:
            live.sort(key=lambda node: -self._candidates[node].reach)
        return live

    # What is verified.

    def finished(self) -> PlannedDraft:
        """The tree of what is worth verifying, and all there is to learn from."""
        kept, padded = self._selected()
        tree, chances = TokenTree(), {}
        nodes = {ROOT: ROOT}
        tokens = 1.0
        for number in kept:
            candidate = self._candidates[number]
            node = tree.add(
                candidate.token, nodes[candidate.parent], candidate.source, candidate.proposal
            )
            nodes[number] = node
            chances[node] = candidate.chance
            tokens += candidate.reach
        filler, parent = self.session.context[-1], tree.tip()
        for _ in range(padded):
            parent = tree.pad(filler, parent)
        target_seconds = self._least[len(kept) + 1]
        passes = sum(map(self._pass_cost, self._sizes))
        gain = 0.0
        if self._sizes:
            further = passes - self._pass_cost(self._sizes[0])
            gain = tokens - self._rate * target_seconds - further - self._plan.worth
        return PlannedDraft(
            tree,
            UNLIKELY if self._sizes else "",
            Expectation(tokens, target_seconds + passes / self._rate, chances),
            tuple(self._candidates),
            tuple(self._sizes),
            gain,
            tuple(self._lessons),
            tuple(self._reviewed),
        )

    def _selected(self) -> tuple[list[int], int]:
        """Which candidates are verified, in order, and how many slots are cheaper full."""
        order: list[int] = list(range(len(self._candidates)))
        most = self._plan.depth
        if not self.drawn:
            # Parents are at least as likely as their children, and come first among equals.
            order.sort(key=lambda number: -self._candidates[number].reach)
            order = self._fitting(order)
        best, count, total = 1.0 - self._rate * self._least[1], 0, 1.0
        firm = sum(candidate.proposal is not None for candidate in self._candidates)
        if self.drawn and firm:
            best = float("-inf")  # what was drawn is verified
        for n, number in enumerate(order[:most], 1):
            total += self._candidates[number].reach
            if n < firm:
                continue
            worth = total - self._rate * self._least[n + 1]
            if worth > best:
                best, count = worth, n
        free = min(self._costs.size[count + 1], most + 1) - 1 - count if count else 0
        kept = sorted(order[: count + free])
        return kept, count + free - len(kept)

    def _fitting(self, order: Sequence[int]) -> list[int]:
        """The candidates, best first, without those that would make a branch too many.

        Every beginning of the result is a tree of at most so many branches as fit.
        """
        kept: set[int] = set()
        above: set[int] = set()
        leaves = 0
        found = []
        for number in order:
            parent = self._candidates[number].parent
            if parent != ROOT and parent not in kept:
                continue
            branches = parent in above or (parent == ROOT and leaves == 0)
            if branches and leaves == self._plan.leaves:
                continue
            leaves += branches
            kept.add(number)
            above.add(parent)
            found.append(number)
        return found


SECOND = "second"
"""Kind of estimator that every model source has: of its second and further choices."""
UNLIKELY = "the draft model was asked, and its tokens were too unlikely to be verified"
