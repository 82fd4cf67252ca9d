"""The policy of `auto`: how much is drafted at each step, and by which source.

Predictions of lookup sources are free, so their worth is known (`localspec.policy.worth`). A model
source costs a pass before its first token is known, so it is used if its recent gains exceed
that. While it drafts, each further pass has to pay (`localspec.policy.draft_builder`). Nothing is
drafted that the budget does not cover (`localspec.policy.budget`).
"""

from collections.abc import Sequence
from itertools import islice

from localspec.decoding.interfaces import LAST, Draft, Limits, Plan, Step
from localspec.decoding.loop import Drafter
from localspec.decoding.session import Session
from localspec.decoding.sources import LookupSource, ModelSource
from localspec.decoding.stats import AccountStatement
from localspec.policy import reasons
from localspec.policy.acceptance_estimator import AcceptanceEstimator
from localspec.policy.candidates import Candidate, Lookup
from localspec.policy.cost_curve import CostCurve
from localspec.policy.draft_builder import DraftBuilder
from localspec.policy.model_state import ModelState
from localspec.policy.profile import PairProfile
from localspec.policy.worth import Worth

AUTO = "auto"
MAX_DRAFT = 63  # tokens


class Policy(Drafter):
    """The `localspec.decoding.loop.Drafter` of `auto`, for one answer.

    Args:
        branches: whether drafts may be trees.
        drawn: whether model sources draw their tokens from their distributions.
        costs: cost curve of the target's passes; None for that of a single answer.
        nothing: the reason given if lookups find nothing and no model source takes part.

    Attributes:
        statement: what drafting saved and risked in this answer.
    """

    RATE_DECAY = 0.97  # decay of the running tokens per second, per step
    BEYOND = 12
    """Tokens of a chain examined beyond the best end so far, as T(n) is not monotone."""
    LEAST_FIRST, LEAST_REACH = 0.2, 0.05
    """Minimum probability of a first prediction, and path probability of a later one."""
    LONGEST_PLANNING = 1e-3  # seconds; anything longer was an interruption
    INTERRUPTED = 4.0
    """Longest drafted step, relative to the expected time; the rest is not due to drafting."""
    SHORT, REST, LONGEST_REST = 8e-3, 0.03, 16
    """Longest pass, in seconds, for which the cost of planning matters; maximum seconds, and steps,
    in a row without planning."""
    OPENING, SHARE = 3.0, 0.03
    """Plain passes that an answer may lose: at first, and per token generated."""

    def __init__(
        self,
        profile: PairProfile,
        lookups: Sequence[LookupSource],
        models: Sequence[ModelSource],
        limits: Limits,
        *,
        branches: bool,
        drawn: bool,
        costs: CostCurve | None = None,
        nothing: str = reasons.NOTHING,
    ) -> None:
        self._profile, self._target = profile, profile.target if costs is None else costs
        self._lookup_sources, self._model_sources = lookups, models
        super().__init__(sources=(*lookups, *models))
        self._most, self._capacity = min(limits.max_draft, MAX_DRAFT), limits.capacity
        self._leaves = limits.max_leaves if branches else 1
        self._drawn, self._nothing = drawn, nothing
        self._model_states: list[ModelState] | None = None
        self._estimators: list[AcceptanceEstimator] = []
        self._steps = self._idle = self._rest = self._answer_tokens = 0
        self._tokens = self._seconds = 0.0
        self._ahead = 0.0  # plain passes saved so far, overruns not counted
        self._plain_before = False  # whether the last pass of the target was over one token
        self._costs: tuple[object, list[float]] = (None, [])
        # Of the current step.
        self._lookups: list[Lookup] = []
        self._worth: Worth | None = None
        self._model_state: ModelState | None = None
        self._builder: DraftBuilder | None = None
        self._lookup_worth = self._gain = 0.0
        self.statement = AccountStatement()
        self._report(profile.budget.saved)
        profile.begin()

    # Planning.

    def plan(self, session: Session) -> Plan:
        profile, held = self._profile, len(session.context)
        self._lookups, self._model_state, self._builder = [], None, None
        self._steps += 1
        if self._rest:
            self._rest -= 1
            return RESTING
        target = self._target
        target.refresh()
        if not target:
            return UNMEASURED
        room = min(session.room - 1, self._most, self._capacity - held)
        if room < 1:
            return LAST
        plain = target.plain(held)
        if target.doubtful(held) or profile.budget.exposed(plain):
            return CONFIRMING
        seconds = self._verifying(held, plain, room)
        if not self._seconds:
            # An answer begins as if after eight steps of plain decoding.
            self._tokens, self._seconds = 8.0, 8.0 * seconds[1]
        rate = max(1.0 / seconds[1], self._tokens / self._seconds)
        # The fund is in current seconds, costs are at the table's pace; use the slower pace.
        pace = max(target.pace, plain / target.seconds(1, held))
        fund = profile.budget.open(plain)
        opening = (self.OPENING + self.SHARE * self._answer_tokens + self._ahead) * plain
        spare = min(fund, opening) / pace
        self._worth = Worth(seconds, rate, spare)
        self._look_up(session, room, self._worth)
        if self._model_states is None:
            self._model_states = [
                ModelState(source, profile, session) for source in self._model_sources
            ]
        covered, best, gain = True, None, 0.0
        for state in self._model_states:
            if not state.refresh(session):
                continue
            advantage = state.advantage(rate)
            due = state.burst or self._steps >= state.next_trial
            if advantage <= gain and not (due and best is None):
                continue
            # The cost of catching up is known in advance, and limited by the fund alone.
            needed = state.token_seconds + seconds[2] - seconds[1]
            if needed > spare or (needed + state.catch_up_seconds) * pace > fund:
                covered = covered and advantage <= 0.0  # a postponed trial loses nothing
                continue
            best, gain = state, max(advantage, 0.0)
        if best is None and self._lookup_worth <= self._worth.plain:
            return self._undrafted(seconds[1], covered=covered)
        self._idle = 0
        if best is None:
            return Plan(AUTO, room, reason=reasons.COPYING)
        best.record_use(self._steps, rate, pays=gain > 0.0)
        self._model_state = best
        self._worth = Worth(
            seconds, rate, min(fund / pace, spare + best.catch_up_seconds), firm=self._drawn
        )
        return Plan(AUTO, room, reason=reasons.LEADING)

    def _look_up(self, session: Session, room: int, worth: Worth) -> None:
        """Collect the predictions of the lookup sources, and compute their worth."""
        if not self._estimators:
            self._estimators = [
                self._profile.source(s).estimators[s.kind(session)] for s in self._lookup_sources
            ]
        self._lookup_worth = worth.plain
        for source, estimator in zip(self._lookup_sources, self._estimators, strict=True):
            lookup = Lookup(source, estimator, [])
            self._lookups.append(lookup)
            reach = total = 1.0
            first, best, farthest = 0.0, worth.plain, 1 + self.BEYOND
            predictions = islice(source.predict(source.position(session)), room)
            for n, prediction in enumerate(predictions, 2):
                lookup.predictions.append(prediction)
                reach *= estimator.predict(prediction.features)
                if reach < (self.LEAST_REACH if first else self.LEAST_FIRST) or n > farthest:
                    break
                first = first or reach
                total += reach
                here = total - worth.rate * worth.seconds[n]
                if here > best and worth.affords(0.0, n - 1):
                    best, farthest = here, n + self.BEYOND
            self._lookup_worth = max(self._lookup_worth, best)

    def _undrafted(self, plain: float, *, covered: bool) -> Plan:
        """Return a plan without a draft, and set for how many steps planning is skipped."""
        if not covered:
            return UNCOVERED
        self._idle += 1
        if plain < self.SHORT:
            self._rest = min(self._idle // 2, self.LONGEST_REST, int(self.REST / plain))
        if self._model_sources:
            return LOSING
        looked_up = any(lookup.predictions for lookup in self._lookups)
        return UNLIKELY if looked_up else Plan(None, reason=self._nothing)

    def _verifying(self, held: int, plain: float, most: int) -> list[float]:
        """Seconds of steps by number of tokens, up to `most` + 1, at the table's pace.

        Cached until the table changes or the context grows. `plain`: seconds of a plain pass."""
        target = self._target
        key = target.answers, target.version, held >> 7
        if self._costs[0] != key:
            old_key, old_costs = self._costs
            self._costs = key, self._profile.verifying(held, self._most, target)
            if isinstance(old_key, tuple) and old_key[0] != key[0]:
                # Rescale the throughput to the new number of answers that share a pass.
                self._seconds *= self._costs[1][1] / old_costs[1]
        costs = self._costs[1][: most + 2]
        # Gains are relative to plain decoding, whose time is best known from plain passes.
        costs[1] = (plain + self._profile.step_overhead) / target.pace
        return costs

    # Drafting.

    def draft(self, session: Session, plan: Plan) -> Draft:
        worth, state = self._worth, self._model_state
        assert worth is not None
        builder = self._builder = DraftBuilder(
            session,
            self._lookups,
            worth,
            depth=plan.depth,
            leaves=self._leaves,
            drawn=self._drawn and state is not None,
        )
        if state is None:
            builder.add_lookups()
        else:
            builder.expand(state)
        granted, seconds = None, worth.seconds
        if builder.candidates:
            joint = self._target.allocate(len(session.context), builder.bid)
            if joint is not None:
                granted, each = joint
                seconds = [0.0, *(seconds[1] + n * each for n in range(granted + 1))]
        tree = builder.select(granted)
        verifying = seconds[len(tree) + 1]
        passes = builder.seconds
        # The gain of drafting by the model, its first pass not deducted.
        value = builder.tokens - worth.rate * (verifying + sum(passes[1:]))
        self._gain = max(0.0, value - self._lookup_worth)
        reason = reasons.REJECTED if passes else reasons.UNLIKELY
        return Draft(tree, reason, verifying + sum(passes))

    # Learning.

    def observe(self, step: Step) -> None:
        nodes = len(step.draft.tree.tokens)
        alike, self._plain_before = self._plain_before, not (step.reads_prompt or nodes)
        self._answer_tokens += len(step.tokens)
        self._profile.said += len(step.tokens)
        # The prompt's pass reads many tokens, and its time is not that of a step.
        if step.reads_prompt or step.plan is RESTING:
            return
        profile, held = self._profile, step.context_length
        target, state, builder = self._target, self._model_state, self._builder
        target.refresh()
        before, saved_before = target.plain(held), profile.budget.saved
        lost = self._settle(step, before)
        target.observe(1 + nodes, held, step.target_seconds, alike=alike)
        if not nodes:
            outlier = target.baseline is not None and target.baseline.outlier
            # A slow outlier may be an interruption, as the next pass will show; a fast one is not.
            now = step.target_seconds if outlier else target.plain(held)
            if not outlier or now < before:
                profile.budget.confirm(before, now)
        self._report(saved_before)
        profile.record_overhead(step.seconds - step.target_seconds - step.draft_seconds, nodes)
        self._tokens = self._tokens * self.RATE_DECAY + len(step.tokens)
        self._seconds = self._seconds * self.RATE_DECAY + step.seconds / target.pace
        for model in self._model_sources if before else ():
            saved = -lost if state is not None and state.source is model else 0.0
            profile.source(model).record_savings(saved / before, len(step.tokens))
        if state is not None and builder is not None and builder.sizes:
            if len({*builder.sizes}) == 1:
                seconds = step.draft_seconds / len(builder.sizes) / target.pace
                state.profile.costs.correct(builder.sizes[0], held, seconds)
                state.profile.costs.observe(builder.sizes[0], held, seconds)
            state.profile.gain.learn(self._gain)
        if builder is not None:
            self._learn_from_candidates(builder, step)
        for lookup in self._lookups:
            _learn_from_lookup(lookup, step.tokens)

    def _settle(self, step: Step, plain: float) -> float:
        """Enter a step in the budget; returns its loss against plain decoding, in seconds."""
        profile, tokens = self._profile, len(step.tokens)
        drafted, slower = bool(step.tree.tokens) or step.draft_seconds > 0.0, 1.0
        if drafted:
            seconds, expected, over = step.seconds, step.draft.expected_seconds, 0.0
            if expected is not None and plain:
                table_plain = self._target.seconds(1, step.context_length)
                # A time below that of a plain step was measured at another pace.
                allowed = plain * max(1.0, expected / table_plain)
                seconds = min(seconds, self.INTERRUPTED * allowed)
                slower = seconds / allowed
                over = max(0.0, seconds - allowed)
            lost = seconds - tokens * (plain + profile.step_overhead)
            if plain:
                self._ahead -= (lost - over) / plain
        else:
            # A plain pass is no loss, but planning is.
            own = step.seconds - step.target_seconds
            lost = min(self.LONGEST_PLANNING, max(0.0, own - profile.step_overhead))
        profile.budget.settle(plain, tokens, lost, step.seconds, drafted=drafted, slower=slower)
        return lost

    def _report(self, before: float) -> None:
        """Report what the pair has saved since `before`, also by this answer alone."""
        statement, budget = self.statement, self._profile.budget
        statement.saved += budget.saved - before
        statement.pair_saved, statement.fund = budget.saved, budget.fund or 0.0

    def _learn_from_candidates(self, builder: DraftBuilder, step: Step) -> None:
        """Learn which candidates the accepted path confirms, verified or not."""
        parent: Candidate | None = builder.root
        for depth, token in enumerate(step.tokens, 1):
            if parent is None or parent not in builder.children:
                break
            siblings, parent = builder.children[parent], None
            for sibling in siblings:
                if depth > 1 and sibling.first and self._model_state is not None:
                    self._model_state.continuation += ModelState.CONTINUATION_RATE * (
                        sibling.chance - self._model_state.continuation
                    )
                if parent is not None:
                    continue
                right = sibling.token == token
                if sibling.proposal is not None:
                    right = depth <= step.accepted  # if drawn, acceptance decides
                if sibling.estimator is not None:
                    sibling.estimator.learn(sibling.features, right)
                if right:
                    parent = sibling


def _learn_from_lookup(lookup: Lookup, tokens: Sequence[int]) -> None:
    """Learn from a lookup source's first predictions, whichever source drafted. Later tokens of a
    copy add no information."""
    for prediction, token in zip(lookup.predictions[:3], tokens, strict=False):
        right = prediction.token == token
        lookup.estimator.learn(prediction.features, right)
        if not right:
            return


RESTING = Plan(None, reason=reasons.RESTING)
UNMEASURED = Plan(None, reason=reasons.UNMEASURED)
CONFIRMING = Plan(None, reason=reasons.CONFIRMING)
UNCOVERED = Plan(None, reason=reasons.UNCOVERED)
LOSING = Plan(None, reason=reasons.LOSING)
UNLIKELY = Plan(None, reason=reasons.UNLIKELY)
