"""The policy of `auto`: how much is drafted at each step, and by whom.

What lookup sources expect is free, so its worth is known (`localspec.policy.worth`). A model source
costs a pass before it says anything, so it is asked where what asking gained lately exceeds that.
While it drafts, each further pass has to be worth more than it costs (`localspec.policy.growing`).
Nothing is drafted that the budget does not cover (`localspec.policy.budget`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import islice

from localspec.decoding.interfaces import LAST, Draft, Drafter, Limits, Plan, Step
from localspec.decoding.sampling import Rows
from localspec.decoding.session import Session
from localspec.decoding.sources import LookupSource, ModelSource
from localspec.decoding.stats import AccountStatement
from localspec.policy import reasons
from localspec.policy.acceptance_estimator import AcceptanceEstimator
from localspec.policy.asking import Asking
from localspec.policy.candidates import Candidate, Looked
from localspec.policy.cost_curve import CostCurve
from localspec.policy.growing import Growing
from localspec.policy.profile import PairProfile
from localspec.policy.worth import Worth

AUTO = "auto"
DEEPEST = 63  # tokens of a draft, at most


class Policy(Drafter):
    """The `localspec.decoding.interfaces.Drafter` of `auto`, for one answer.

    Args:
        branches: whether drafts may be trees.
        drawn: whether model sources draw their tokens from their distributions.
        costs: of the target's passes, None for those of an answer alone.
        overlaps: whether the model source goes on while the target verifies.
        nothing: reason where nothing is looked up and no model source takes part.

    Attributes:
        statement: what drafting saved and risked in this answer.
    """

    RATE_KEEP = 0.97  # weight of the past in the running tokens per second, per step
    BEYOND = 12
    """Tokens of a looked up chain after the best end so far: passes of some sizes are bargains."""
    DOUBTFUL, FAINT = 0.2, 0.05
    """Least probability of a first prediction, and of reaching a later one."""
    LONGEST_PLANNING = 1e-3  # seconds; a step whose planning seems to take longer was interrupted
    INTERRUPTED = 4.0
    """Times as long as foreseen: what a drafted step took beyond is not drafting's doing."""
    SHORT, REST, LONGEST_REST = 8e-3, 0.03, 16
    """Seconds of a pass beside which planning shows; seconds, and steps, that are not planned in a
    row, at most."""
    OPENING, SHARE = 3.0, 0.03
    """Plain passes that one answer may lose at first, and the share of the tokens so far."""

    name = AUTO

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
        overlaps: bool = False,
        nothing: str = reasons.NOTHING,
    ) -> None:
        self._profile, self._target = profile, profile.target if costs is None else costs
        self._lookups, self._models = lookups, models
        self._sources = (*lookups, *models)
        self._most, self._capacity = min(limits.max_draft, DEEPEST), limits.capacity
        self._leaves = limits.max_leaves if branches else 1
        self._drawn, self._overlaps, self._nothing = drawn, overlaps, nothing
        self._askings: list[Asking] | None = None
        self._estimators: list[AcceptanceEstimator] = []
        self._steps = self._idle = self._rest = self._tokens_said = 0
        self._tokens = self._seconds = 0.0
        self._ahead = 0.0  # of plain decoding, in its passes, had no drafted step taken too long
        self._plain_before = False  # whether the last pass of the target was over one token
        self._costs: tuple[object, list[float]] = (None, [])
        # Of the step under way.
        self._looked: list[Looked] = []
        self._worth: Worth | None = None
        self._asking: Asking | None = None
        self._growing: Growing | None = None
        self._lookup_worth = self._gain = 0.0
        self.hidden = tuple(sorted({layer for s in self._sources for layer in s.hidden}))
        self.statement = AccountStatement()
        profile.budget.tell(self.statement)
        profile.begin()

    # Decide.

    def plan(self, session: Session) -> Plan:
        profile, held = self._profile, len(session.context)
        self._looked, self._asking, self._growing = [], None, None
        self._steps += 1
        if self._rest:
            self._rest -= 1
            return RESTING
        target = self._target
        target.look()
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
            # Eight steps of plain decoding: where every answer begins.
            self._tokens, self._seconds = 8.0, 8.0 * seconds[1]
        rate = max(1.0 / seconds[1], self._tokens / self._seconds)
        # The fund is in seconds of now, costs are at the table's pace: the slowest that is known.
        pace = max(target.pace, plain / target.seconds(1, held))
        fund = profile.budget.open(plain)
        opening = (self.OPENING + self.SHARE * self._tokens_said + self._ahead) * plain
        spare = min(profile.budget.stake(plain), opening) / pace
        self._worth = Worth(seconds, rate, spare)
        self._look_up(session, room, self._worth)
        if self._askings is None:
            self._askings = [Asking(source, profile, session) for source in self._models]
        covered, best, gain = True, None, 0.0
        for asking in self._askings:
            if not asking.look(session):
                continue
            advantage = asking.advantage(rate)
            due = asking.burst or self._steps >= asking.next_trial
            if advantage <= gain and not (due and best is None):
                continue
            # Catching up is no bet: what it takes is known, and need not be half of the fund.
            needed = asking.one + seconds[2] - seconds[1]
            if needed > spare or (needed + asking.missed) * pace > fund:
                covered = covered and advantage <= 0.0  # a trial that has to wait is no loss
                continue
            best, gain = asking, max(advantage, 0.0)
        if best is None and self._lookup_worth <= self._worth.plain:
            return self._undrafted(seconds[1], covered=covered)
        self._idle = 0
        if best is None:
            return Plan(AUTO, room, reason=reasons.COPYING)
        best.chosen(self._steps, rate, pays=gain > 0.0)
        self._asking = best
        self._worth = Worth(seconds, rate, min(fund / pace, spare + best.missed), firm=self._drawn)
        return Plan(AUTO, room, reason=reasons.LEADING, overlaps=self._overlaps)

    def _look_up(self, session: Session, room: int, worth: Worth) -> None:
        """What the lookup sources expect, and what it is worth."""
        if not self._estimators:
            self._estimators = [
                self._profile.source(s).estimators[s.kind(session)] for s in self._lookups
            ]
        self._lookup_worth = worth.plain
        for source, estimator in zip(self._lookups, self._estimators, strict=True):
            looked = Looked(source, estimator, [])
            self._looked.append(looked)
            reach = total = 1.0
            first, best, farthest = 0.0, worth.plain, 1 + self.BEYOND
            for n, prediction in enumerate(islice(source.expected(source.place(session)), room), 2):
                looked.expected.append(prediction)
                reach *= estimator.predict(prediction.features)
                if reach < (self.FAINT if first else self.DOUBTFUL) or n > farthest:
                    break
                first = first or reach
                total += reach
                here = total - worth.rate * worth.seconds[n]
                if here > best and worth.affords(0.0, n - 1):
                    best, farthest = here, n + self.BEYOND
            self._lookup_worth = max(self._lookup_worth, best)

    def _undrafted(self, plain: float, *, covered: bool) -> Plan:
        """Nothing is drafted: why, and for how long nothing is planned either."""
        if not covered:
            self.statement.refused += 1
            return UNCOVERED
        self._idle += 1
        if plain < self.SHORT:
            self._rest = min(self._idle // 2, self.LONGEST_REST, int(self.REST / plain))
        if self._models:
            return LOSING
        looked_up = any(looked.expected for looked in self._looked)
        return UNLIKELY if looked_up else Plan(None, reason=self._nothing)

    def _verifying(self, held: int, plain: float, most: int) -> list[float]:
        """Seconds of steps by their tokens, up to `most` + 1, at the table's pace; worked out anew
        when the table has changed or the context is longer. `plain`: seconds of a plain pass."""
        target = self._target
        of = target.answers, target.version, held >> 7
        if self._costs[0] != of:
            before, earlier = self._costs[1], self._costs[0]
            self._costs = of, self._profile.verifying(held, self._most, target)
            if isinstance(earlier, tuple) and earlier[0] != of[0]:
                # What recent steps brought, as if the pass had been shared by so many.
                self._seconds *= self._costs[1][1] / before[1]
        found = self._costs[1][: most + 2]
        # Gains are measured by plain decoding, which plain passes know best.
        found[1] = (plain + self._profile.step_overhead) / target.pace
        return found

    # Draft.

    def draft(self, session: Session, plan: Plan) -> Draft:
        worth, asking = self._worth, self._asking
        assert worth is not None
        growing = self._growing = Growing(
            session,
            self._looked,
            worth,
            depth=plan.depth,
            leaves=self._leaves,
            drawn=self._drawn and asking is not None,
        )
        if asking is None:
            growing.look_up()
        else:
            growing.ask(asking)
        granted, seconds = None, worth.seconds
        if growing.candidates:
            joint = self._target.granted(len(session.context), growing.bid)
            if joint is not None:
                granted, each = joint
                seconds = [0.0, *(seconds[1] + n * each for n in range(granted + 1))]
        tree = growing.selected(granted)
        verifying = seconds[len(tree) + 1]
        passes = [] if asking is None else [asking.seconds(size) for size in growing.sizes]
        # Of asking, its first pass not taken off.
        value = growing.tokens - worth.rate * (verifying + sum(passes[1:]))
        self._gain = max(0.0, value - self._lookup_worth)
        reason = reasons.REJECTED if passes else reasons.UNLIKELY
        return Draft(tree, reason, verifying + sum(passes))

    @property
    def native_seconds(self) -> float:
        return sum((model.native_seconds for model in self._models), 0.0)

    def begin(self, prompt: Sequence[int]) -> None:
        for source in self._sources:
            source.begin(prompt)

    def verifying(
        self, session: Session, plan: Plan, draft: Draft
    ) -> AbstractContextManager[object]:
        assert self._asking is not None, "only a model source can go on while the target verifies"
        return self._asking.source.verifying(session, draft.tree)

    def committed(self, context: Sequence[int], hidden: Mapping[int, Rows]) -> None:
        for source in self._sources:
            source.committed(context, hidden)

    # Learn.

    def observe(self, step: Step) -> None:
        nodes = len(step.draft.tree.tokens)
        alike, self._plain_before = self._plain_before, not (step.reads_prompt or nodes)
        self._tokens_said += len(step.tokens)
        self._profile.said += len(step.tokens)
        # The prompt's pass is over many tokens, and its time is no step's.
        if step.reads_prompt or step.plan is RESTING:
            return
        profile, held = self._profile, step.context_length
        target, asking, growing = self._target, self._asking, self._growing
        target.look()
        before = target.plain(held)
        lost = self._settle(step, before)
        target.observe(1 + nodes, held, step.target_seconds, alike=alike)
        if not nodes:
            strange = target.baseline is not None and target.baseline.strange
            # A strange slow pass may be a hiccup, which the next one tells; a quick one is none.
            now = step.target_seconds if strange else target.plain(held)
            if not strange or now < before:
                profile.budget.prove(before, now, self.statement)
        profile.spent(step.seconds - step.target_seconds - step.draft_seconds, nodes)
        self._tokens = self._tokens * self.RATE_KEEP + len(step.tokens)
        self._seconds = self._seconds * self.RATE_KEEP + step.seconds / target.pace
        for model in self._models if before else ():
            saved = -lost if asking is not None and asking.source is model else 0.0
            profile.source(model).earned(saved / before, len(step.tokens))
        if asking is not None and growing is not None and growing.sizes:
            if len({*growing.sizes}) == 1:
                seconds = step.draft_seconds / len(growing.sizes) / target.pace
                asking.profile.costs.observe(growing.sizes[0], held, seconds)
            asking.profile.gain.learn(self._gain)
        if growing is not None:
            self._learn_from_candidates(growing, step)
        for looked in self._looked:
            _check(looked, step.tokens)

    def _settle(self, step: Step, plain: float) -> float:
        """Enter the step in the budget, and say what it lost against plain decoding, in seconds."""
        profile, tokens = self._profile, len(step.tokens)
        drafted, slower = bool(step.tree.tokens) or step.draft_seconds > 0.0, 1.0
        if drafted:
            seconds, expected, over = step.seconds, step.draft.foreseen, 0.0
            if expected is not None and plain:
                unhurried = self._target.seconds(1, step.context_length)
                # What seems quicker than a plain step was measured at another pace.
                foreseen = plain * max(1.0, expected / unhurried)
                seconds = min(seconds, self.INTERRUPTED * foreseen)
                slower = seconds / foreseen
                over = max(0.0, seconds - foreseen)
            lost = seconds - tokens * (plain + profile.step_overhead)
            if plain:
                self._ahead -= (lost - over) / plain
        else:
            # How long a plain pass takes is not drafting's doing; that it was planned for is.
            own = step.seconds - step.target_seconds
            lost = min(self.LONGEST_PLANNING, max(0.0, own - profile.step_overhead))
        profile.budget.settle(
            plain, tokens, lost, step.seconds, self.statement, drafted=drafted, slower=slower
        )
        return lost

    def _learn_from_candidates(self, growing: Growing, step: Step) -> None:
        """What the target said about the candidates along the accepted path, verified or not."""
        parent: Candidate | None = growing.root
        for depth, token in enumerate(step.tokens, 1):
            if parent is None or parent not in growing.children:
                break
            siblings, parent = growing.children[parent], None
            for one in siblings:
                if depth > 1 and one.first and self._asking is not None:
                    self._asking.onward += Asking.ONWARD_RATE * (one.chance - self._asking.onward)
                if parent is not None:
                    continue
                right = one.token == token
                if one.proposal is not None:
                    right = depth <= step.accepted  # drawn: what counts is whether it was accepted
                if one.estimator is not None:
                    one.estimator.learn(one.features, right)
                if right:
                    parent = one


def _check(looked: Looked, tokens: Sequence[int]) -> None:
    """Learn from what a lookup source expected, whoever drafted; every token of a copy teaches the
    same."""
    for prediction, token in zip(looked.expected[:3], tokens, strict=False):
        right = prediction.token == token
        looked.estimator.learn(prediction.features, right)
        if not right:
            return


RESTING = Plan(None, reason=reasons.RESTING)
UNMEASURED = Plan(None, reason=reasons.UNMEASURED)
CONFIRMING = Plan(None, reason=reasons.CONFIRMING)
UNCOVERED = Plan(None, reason=reasons.UNCOVERED)
LOSING = Plan(None, reason=reasons.LOSING)
UNLIKELY = Plan(None, reason=reasons.UNLIKELY)
