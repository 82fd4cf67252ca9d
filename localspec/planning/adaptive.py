"""The adaptive planner: drafts only as far as this machine and this pair make it pay."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import islice

from localspec.decoding.auto_sources import LookupSource, ModelSource, WindowSource
from localspec.decoding.interfaces import Limits, Plan, Step
from localspec.decoding.session import Session
from localspec.decoding.stats import AccountStatement
from localspec.decoding.tree import ROOT
from localspec.planning.answer_state import (
    FAIR,
    GOOD,
    NONE,
    POOR,
    LookupState,
    LookupValue,
    ModelState,
)
from localspec.planning.asking import Decisiveness
from localspec.planning.costs import VerificationCosts
from localspec.planning.draft_value import DraftValue
from localspec.planning.explore_then_commit import ExploreThenCommit
from localspec.planning.naps import Naps
from localspec.planning.pair_profile import PairProfile
from localspec.planning.plan import AUTO, AdaptivePlan, PlannedDraft
from localspec.planning.planner import LAST
from localspec.planning.reasons import (
    ASLEEP,
    CONFIRMING,
    HOPELESS,
    LOSING,
    NOTHING,
    TOO_SHORT,
    UNCOVERED,
    UNLIKELY,
    UNMEASURED,
    reason,
)
from localspec.planning.window_shape import best_shape


class AdaptivePlanner:
    """Chooses at every step what maximises expected tokens per second: see
    `localspec.planning.draft_tree`. It sees numbers only: costs, chances, gains.

    Args:
        profile: of this pair on this machine; learns as the answer goes on.
        lookups, models: the sources that may be used.
        limits: of the target.
        greedy: whether the answer is greedy, or drawn with noise that the drafts know: they are
            then chosen, and may branch.
        trees: whether the acceptance rule takes branches.
        drawn: whether model sources draw their tokens from their distributions.
        overlap: says whether the model source goes on while the target verifies; None if it never
            does.
        too_short: whether there are model sources that such an answer is too short for.
    """

    RATE_KEEP = 0.97
    """Weight of the past in the running tokens per second, per step."""
    WORTHWHILE = 1.75
    """Where passes are short, and drafts that were always right would not make it so many times
    faster, real ones do not pay for being planned."""
    DIP = 12
    """Sizes looked beyond the best one so far: a pass over 16 can be a bargain where 5 is none."""
    DOUBTFUL, FAINT = 0.2, 0.05
    """A first prediction less likely than the one, and a later one less likely to be reached than
    the other, are not worth a thought: no known curve makes them pay."""
    SURE = 0.9
    """Where the next token that was looked up is this likely, a draft model has little to add."""
    ONWARD_RATE = 0.05
    FINE = 0.01
    """By so much (as a logarithm) plain passes may differ from the table until costs are worked out
    anew."""
    LONGEST_PLANNING = 1e-3
    """Seconds; a step whose planning seems to take longer was interrupted."""

    def __init__(
        self,
        profile: PairProfile,
        lookups: Sequence[LookupSource],
        models: Sequence[ModelSource],
        limits: Limits,
        *,
        greedy: bool,
        trees: bool,
        drawn: bool,
        overlap: ExploreThenCommit | None = None,
        too_short: bool = False,
    ) -> None:
        self._profile = profile
        self._lookup_sources = lookups
        self._lookups: list[LookupState] = []
        self._models = {source.name: ModelState(source, profile) for source in models}
        self.watches = bool(self._models)  # nobody else is told how sure the target was
        self._told = [(n, m.profile.states) for n, m in self._models.items() if m.reads_states]
        # One source has a window at most.
        window = next((source for source in lookups if isinstance(source, WindowSource)), None)
        self._window_name = "" if window is None else window.name
        self._windows = None if window is None else profile.source(window)
        self._most = min(limits.max_draft, 63)
        self._leaves = limits.max_leaves if greedy and trees else 1
        self._capacity = limits.capacity
        self._drawn = drawn and not greedy
        self._overlap = overlap
        self._nothing = TOO_SHORT if too_short else NOTHING
        self._costs: VerificationCosts | None = None
        self._costs_of: tuple[int, int, int, int] | None = None
        self._tokens = self._seconds = 0.0
        self._decisiveness = Decisiveness()
        self._naps = Naps(profile)
        self._uncovered = False
        self._plain_before = False  # whether the last pass of the target was over one token
        self.statement = AccountStatement()
        profile.account.tell(self.statement)
        profile.begin()

    def plan(self, session: Session) -> Plan:
        if self._naps.goes_on(session, self._lookups):
            return ASLEEP
        profile, held = self._profile, len(session.context)
        room = min(session.room - 1, self._most, self._capacity - held)
        for lookup in self._lookups:
            lookup.predictions = []
        target = profile.target
        if not target:
            return UNMEASURED
        if room < 1:
            return LAST
        costs = self._verification_costs(held)
        if costs.size[room + 1] > room + 1:
            # A smaller pass was to be filled up to a larger, cheaper one: there is no room for it.
            costs = profile.verification_costs(held, room)
        if costs.least[1] < Naps.SHORT and costs.ceiling < self.WORTHWHILE:
            return HOPELESS
        account, plain = profile.account, target.plain(held)
        if target.doubtful or target.strayed(held) or account.exposed(plain):
            return CONFIRMING
        rate = self._rate(costs)
        # The fund is in seconds of now, costs are at the table's pace: the slowest that is known.
        pace = max(target.pace, plain / target.seconds(1, held))
        spare, fund = account.stake(plain) / pace, account.open(plain) / pace
        features = self._decisiveness.features
        for model in self._models.values():
            model.begin(session, features, lambda: self._value(costs, rate, room), rate)
        looked_up = self._look_up(session, room, costs, rate, spare)
        asks = self._to_ask(session, looked_up, costs, rate, spare, fund)
        reviews = None
        if asks is None and not looked_up.pays:
            reviews = self._to_review(session, costs, fund)
        window = None
        if self._windows is not None and self._leaves > 1:
            share, least = self._windows.came_true[0], costs.least[: room + 2]
            window = best_shape(least, rate, self._leaves - 1, share=share, spare=spare)
        if asks is None and reviews is None and window is None and not looked_up.pays:
            return self._plain(costs)
        self._naps.drafted()
        if asks is not None:
            # Catching up is no bet: what it takes is known, and need not be half of the fund.
            spare = min(fund, spare + self._models[asks].missed(session))
        concerned = asks or reviews
        return AdaptivePlan(
            AUTO,
            room,
            reason=reason(asks, reviews, looked_up),
            overlaps=asks is not None and self._overlap is not None and self._overlap.new_way,
            asks=asks,
            reviews=reviews,
            costs=costs,
            rate=rate,
            leaves=self._leaves,
            drawn=self._drawn and asks is not None,
            predictions={o.source.name: tuple(o.predictions) for o in self._lookups},
            lookup_kind=looked_up.kind,
            worth=looked_up.worth,
            prospect=0.0 if asks is None else self._models[asks].prospect(looked_up),
            window=window,
            onward=0.75 if concerned is None else self._models[concerned].onward,
            spare=spare,
        )

    def observe(self, step: Step) -> None:
        plan, draft = step.plan, step.draft
        nodes, prompt = len(draft.tree.tokens), step.reads_prompt
        alike, self._plain_before = self._plain_before, not (prompt or nodes)
        self._decisiveness.observe(len(step.tokens), step.undecided)
        for name, states in self._told:
            if isinstance(plan, AdaptivePlan) and name in (plan.asks, plan.reviews):
                (states.asked if name == plan.asks else states.tried)()
            else:
                states.unasked()
        profile, held = self._profile, step.context_length
        profile.lengths.said(len(step.tokens))
        for model in self._models.values():
            model.profile.earnings.said(len(step.tokens))
        asleep = plan is ASLEEP
        # The prompt's pass is over many tokens, and its time is no step's.
        if prompt or plan is HOPELESS or (asleep and self._naps.short):
            return
        target = profile.target
        before = target.plain(held)
        lost = self._settle(step, before)
        target.observe(1 + nodes, held, step.target_seconds, alike=alike)
        told = target.plain_pace
        if not nodes and (told is None or not told.open):
            plain = target.plain(held)
            fell = told is not None and told.fell
            profile.account.prove(before if fell else plain, plain, self.statement)
        own = step.seconds - step.target_seconds - step.draft_seconds
        if asleep:
            profile.slept(own)
        else:
            profile.spent(own, nodes)
        self._tokens = self._tokens * self.RATE_KEEP + len(step.tokens)
        self._seconds = self._seconds * self.RATE_KEEP + step.seconds / target.pace
        if isinstance(plan, AdaptivePlan) and isinstance(draft, PlannedDraft):
            concerned = plan.asks or plan.reviews
            if concerned is not None:
                self._models[concerned].profile.earnings.passes -= lost / before
            for lesson in draft.lessons:
                lesson.estimator.learn(lesson.features, bool(lesson.right))
            if plan.reviews is not None:
                self._models[plan.reviews].reviewed(held, plan, draft)
            if plan.asks is not None:
                self._learn_from_asking(self._models[plan.asks], plan, draft, step)
            self._learn_from_candidates(plan, draft, step)
            if plan.window is not None and self._windows is not None:
                came = sum(source == self._window_name for source in step.sources)
                came += len(step.path) - step.accepted
                # As a share: some hundredths of a token would be learned too slowly.
                self._windows.learn_prospect(0, 1.0, came / plan.window.prospect)
        if not asleep:  # else they were not asked
            for lookup in self._lookups:
                lookup.learn(step.tokens)

    def _settle(self, step: Step, plain: float) -> float:
        """Enter the step in the account, and say what it lost against plain decoding, in seconds;
        `plain`: those of a plain pass."""
        profile = self._profile
        tokens, overhead = len(step.tokens), profile.step_overhead
        drafted = bool(step.tree.tokens) or step.draft_seconds > 0.0
        if drafted:
            lost = step.seconds - tokens * (plain + overhead)
        else:
            # How long a plain pass takes is not drafting's doing; that it was planned for is.
            own = step.seconds - step.target_seconds
            lost = min(self.LONGEST_PLANNING, max(0.0, own - overhead))
        profile.account.settle(plain, tokens, lost, step.seconds, self.statement, drafted=drafted)
        return lost

    def _look_up(
        self, session: Session, room: int, costs: VerificationCosts, rate: float, spare: float
    ) -> LookupValue:
        """What the lookup sources have to say here, as far as it is worth a thought."""
        if not self._lookups:
            self._lookups = [
                LookupState(source, self._profile.source(source).estimators[source.kind(session)])
                for source in self._lookup_sources
            ]
        plain = 1.0 - rate * costs.least[1]
        best = LookupValue(NONE, plain, 0.0, 0.0)
        for lookup in self._lookups:
            looked_up = self._value_of(lookup, session, room, costs, rate, spare)
            if looked_up.kind > NONE and (best.kind == NONE or looked_up.worth > best.worth):
                best = looked_up
        return best

    def _value_of(
        self,
        lookup: LookupState,
        session: Session,
        room: int,
        costs: VerificationCosts,
        rate: float,
        spare: float,
    ) -> LookupValue:
        least, estimator, source = costs.least, lookup.estimator, lookup.source
        plain = best = 1.0 - rate * least[1]
        covered = least[1] + spare
        reach = total = 1.0
        first, farthest, at_risk = 0.0, 1 + self.DIP, 0.0
        chain = islice(source.expected(source.place(session)), room)
        for n, prediction in enumerate(chain, 2):
            lookup.predictions.append(prediction)
            reach *= estimator.predict(prediction.features)
            if reach < (self.FAINT if first else self.DOUBTFUL) or n > farthest:
                break
            first = first or reach
            total += reach
            worth = total - rate * least[n]
            if worth > best and least[n] <= covered:
                best, farthest = worth, n + self.DIP
                at_risk = (1.0 - first) * (least[n] - least[1])
        kind = NONE if not first else POOR if best <= plain else FAIR if first < self.SURE else GOOD
        return LookupValue(kind, best, best - plain, at_risk)

    def _value(self, costs: VerificationCosts, rate: float, room: int) -> DraftValue:
        """Of drafts of a model source here."""
        return DraftValue(AdaptivePlan(AUTO, room, costs=costs, rate=rate, leaves=self._leaves))

    def _to_ask(
        self,
        session: Session,
        looked_up: LookupValue,
        costs: VerificationCosts,
        rate: float,
        spare: float,
        fund: float,
    ) -> str | None:
        """The model source that gains most; None where none is worth asking, or the account does
        not cover it, catching up with the text and the smallest draft included."""
        best, gain = None, 0.0
        verified = costs.least[2] - costs.least[1]
        for name, model in self._models.items():
            advantage = model.advantage(session, looked_up, rate)
            if advantage <= gain or not model.ready():
                continue
            first, missed = model.first_pass(session), model.missed(session)
            if first - missed + verified > spare or first + verified > fund:
                self._uncovered = True
                continue
            best, gain = name, advantage
        return best

    def _to_review(self, session: Session, costs: VerificationCosts, fund: float) -> str | None:
        """The model source that it is time to try; the lookup sources' turn otherwise."""
        fund -= costs.least[2] - costs.least[1]
        due = [name for name, model in self._models.items() if model.due(session, fund)]
        first = min(due, key=lambda name: self._models[name].asked_at, default=None)
        return first if first is None or self._models[first].ready() else None

    def _plain(self, costs: VerificationCosts) -> Plan:
        """Nothing is drafted: why, and for how long nothing is planned either."""
        if self._uncovered:
            self._uncovered = False
            self.statement.refused += 1
            return UNCOVERED
        self._naps.idled(costs, models=bool(self._models))
        if not self._models:
            looked_up = any(lookup.predictions for lookup in self._lookups)
            return UNLIKELY if looked_up else self._nothing
        return LOSING

    def _verification_costs(self, held: int) -> VerificationCosts:
        """What verifying costs at this context length, worked out anew when it has moved."""
        target = self._profile.target
        told = target.plain(held) / (target.seconds(1, held) * target.pace)
        of = (
            self._profile.threads,
            target.version,
            held >> 7,
            round(math.log(told) / self.FINE),
        )
        if self._costs is None or self._costs_of != of:
            before, self._costs = self._costs, self._profile.verification_costs(held, self._most)
            if before is not None and self._costs_of is not None and self._costs_of[0] != of[0]:
                # What recent steps brought, as if it had been on this many threads.
                self._seconds *= self._costs.least[1] / before.least[1]
            self._costs_of = of
        return self._costs

    def _rate(self, costs: VerificationCosts) -> float:
        """Tokens per second to be had: what recent steps brought, at least plain decoding's."""
        plain = 1.0 / costs.least[1]
        if not self._seconds:
            # Eight steps of plain decoding: where every answer begins.
            self._tokens, self._seconds = 8.0, 8.0 * costs.least[1]
        return max(plain, self._tokens / self._seconds)

    def _learn_from_asking(
        self, model: ModelState, plan: AdaptivePlan, draft: PlannedDraft, step: Step
    ) -> None:
        if self._overlap is not None:
            self._overlap.observe(len(step.tokens), step.seconds)
        if not draft.sizes:
            return  # what it needed was read beside an earlier pass
        if set(draft.sizes) == {1}:
            seconds = step.draft_seconds / len(draft.sizes)
            model.profile.costs.observe(1, step.context_length, seconds)
        model.asked(step.context_length, plan, max(0.0, draft.gain))

    def _learn_from_candidates(self, plan: AdaptivePlan, draft: PlannedDraft, step: Step) -> None:
        """What the target said about the candidates along the accepted path.

        Also of those that were not verified: where their parent was accepted, what the target put
        in their place is known.
        """
        parent: int | None = ROOT
        for depth, token in enumerate(step.tokens, 1):
            if parent is None or parent not in draft.children:
                break
            siblings, parent = draft.children[parent], None
            for number in siblings:
                candidate = draft.candidates[number]
                if depth > 1 and candidate.first and plan.asks is not None:
                    model = self._models[plan.asks]
                    model.onward += self.ONWARD_RATE * (candidate.chance - model.onward)
                if parent is not None or candidate.estimator is None:
                    continue
                right = candidate.token == token
                if candidate.proposal is not None:
                    right = depth <= step.accepted  # drawn: what counts is whether it was accepted
                candidate.estimator.learn(candidate.features, right)
                if candidate.first and depth == 1 and plan.asks is not None:
                    self._models[plan.asks].right(right)
                if right:
                    parent = number
