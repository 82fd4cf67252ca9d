"""What the adaptive planner keeps of each source during one answer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from localspec.decoding.auto_sources import LookupSource, ModelSource, Prediction
from localspec.decoding.session import Session
from localspec.planning.acceptance_estimator import AcceptanceEstimator
from localspec.planning.asking import BEFORE, Prospects
from localspec.planning.draft_value import DraftValue
from localspec.planning.pair_profile import LOOKUP_KINDS, PairProfile
from localspec.planning.plan import AdaptivePlan, PlannedDraft

NONE, POOR, FAIR, GOOD = range(4)
"""What the lookup sources offer: nothing, too little to draft, a draft, a sure one. What a model
source adds is learned apart for each: see `SourceProfile.came_true`."""


class LookupValue(NamedTuple):
    """What the lookup sources offer at one place, by the best of them.

    Attributes:
        kind: NONE … GOOD.
        worth: of the best beginning of its chain, as the tree builder counts; plain decoding's at
            least.
        lead: what of that is more than plain decoding's.
        at_risk: seconds lost if its first token is rejected.
    """

    kind: int
    worth: float
    lead: float
    at_risk: float

    @property
    def pays(self) -> bool:
        """Whether it is worth drafting by itself."""
        return self.kind >= FAIR


class LookupState:
    """A lookup source during one answer.

    Attributes:
        predictions: what it expects behind the committed text, as far as it was looked at.
    """

    __slots__ = ("estimator", "predictions", "source")

    def __init__(self, source: LookupSource, estimator: AcceptanceEstimator) -> None:
        self.source = source
        self.estimator = estimator
        self.predictions: list[Prediction] = []

    def learn(self, tokens: Sequence[int]) -> None:
        """It is checked for nothing, whoever drafted."""
        for n, (prediction, token) in enumerate(zip(self.predictions, tokens, strict=False)):
            right = prediction.token == token
            if n < 3:  # every token of a long copy teaches the same
                self.estimator.learn(prediction.features, right)
            if not right:
                return


class ModelState:
    """Whether to ask a model source, by how sure the target is and by what asking brought.

    What it gains is foreseen from how likely its first token is right (see
    `localspec.planning.asking`), and put right by how much of that came true, of all times it was
    asked, the latest weighing most: a single one may gain three tokens or none, and a few unlucky
    ones in a row say little.

    Attributes:
        interval: tokens until it is tried again, if it did not pay.
        asked_at: tokens of context when it was asked last.
        onward: how likely its next token was lately, where the ones before it were.
    """

    FIRST_INTERVAL, LONGEST_INTERVAL = 16, 64
    TRIALS = 0.01
    """Of plain decoding, what trials may take: where they are dear, they are further apart."""
    KEEP = 0.91
    """Weight of the past per time of asking."""
    EARLIER = 6.0
    """Times of asking that what was learned in earlier answers counts for."""
    BONUS = 0.15
    """Tokens, over the root of the times counted: what is not well known is tried (optimism in the
    face of uncertainty; Lattimore & Szepesvári 2020, chapter 7)."""
    HORIZON, LONG_HORIZON = 4, 16
    """Times of asking over which the cost of catching up with the text is spread: where asking
    pays only now and then, it is soon left off again. Right after a trial that showed what it is
    worth, more, the most in a long answer."""
    NEAR, PAYS_RATE = 4, 0.06
    """Tokens behind the text up to which it counts as keeping up with it, and the weight of a step
    in whether that pays."""
    REVIEWED = 8
    """Tokens that it is tried on while it is not asked."""
    AT_RISK = 2.0
    """A copy is checked with it where so many times the cost of asking is at risk."""
    REFRESH = 16
    """Steps for which what drafts are worth is taken to stay the same."""

    def __init__(self, source: ModelSource, pair: PairProfile) -> None:
        self.source = source
        self.profile = pair.source(source)
        self._pair = pair
        self._row_overhead = pair.row_overhead  # what many answers at once add is not its own
        self.interval = self._first_interval = self.FIRST_INTERVAL
        self.asked_at = -1
        self._reviewed_at = -self.LONG_HORIZON
        self.onward = 0.75
        self._before: AcceptanceEstimator | None = None
        self._features: tuple[float, ...] = ()
        self._chance = 0.0
        self._prospects: Prospects | None = None
        self._steps = 0
        # Sums of what was foreseen and of what came, by what the lookup sources offered.
        self._foreseen: list[float] = []
        self._came: list[float] = []
        self._times: list[float] = []
        # Before each step: the seconds of a pass by its tokens, and over a single one; of its first
        # one, once they were asked for, and the tokens that it reads.
        self._pass: Callable[[int], float] = float
        self._one, self._behind = 0.0, 0
        self._first: float | None = None
        self._further = 0.0  # seconds that a second unread token takes
        self._pays = 0.0  # tokens a step that keeping up with the text gains

    def begin(
        self,
        session: Session,
        features: tuple[float, ...],
        value: Callable[[], DraftValue],
        rate: float,
    ) -> None:
        """Before each step; `value` of a draft there, `rate` in tokens per second."""
        profile, held = self.profile, len(session.context)
        if not profile.costs:
            return
        looks_back, self._first = self.source.held(session), None
        self._pass = self._pair.pass_seconds(profile, looks_back, self._row_overhead)
        self._one = self._pass(1)
        if self._before is None:
            self.asked_at = held
            self._before = profile.estimators[BEFORE + self.source.kind(session)]
            self._times = [self.EARLIER] * LOOKUP_KINDS
            self._foreseen = [self.EARLIER * profile.USUAL] * LOOKUP_KINDS
            self._came = [
                foreseen * share
                for foreseen, share in zip(self._foreseen, profile.came_true, strict=True)
            ]
            share = rate * self._first_pass(self.REVIEWED) / self.TRIALS
            self._first_interval = max(self.FIRST_INTERVAL, int(share))
            self.interval = self._first_interval
        if self._prospects is None or self._steps % self.REFRESH == 0:
            self._prospects = Prospects(value(), rate * self._one)
            self._further = max(0.0, self._first_pass(2) - self._one)
        self._steps += 1
        self._features, self._chance = features, self._before.predict(features)

    def prospect(self, looked_up: LookupValue) -> float:
        """Tokens that asking it gains, as far as its estimators know."""
        assert self._prospects is not None
        return max(0.0, self._prospects.gain(self._chance) - looked_up.lead)

    def gain(self, looked_up: LookupValue) -> float:
        """Tokens that asking it is expected to gain."""
        kind = looked_up.kind
        return self._came[kind] / self._foreseen[kind] * self.prospect(looked_up)

    def advantage(self, session: Session, looked_up: LookupValue, rate: float) -> float:
        """Tokens that asking it gains over what it costs; above 0 it pays."""
        if not self.profile.costs:
            return -1.0
        one, reading = self._one, self.first_pass(session)
        gain = self.gain(looked_up)
        optimism = self.BONUS / math.sqrt(self._times[looked_up.kind])
        # Who keeps up with the text has to read a token that is left out now beside the next one:
        # always where it is not asked, and where it is, if all that it said was right.
        further = rate * self._further
        asked = gain - rate * one - further * self._chance
        self._pays += self.PAYS_RATE * (max(asked, -further) - self._pays)
        if self._pays > 0.0 and self._behind <= self.NEAR:
            advantage = asked + further + optimism
        else:
            times = self.HORIZON
            if len(session.context) - self._reviewed_at < self.LONG_HORIZON:
                times = max(self.LONG_HORIZON, session.room // 4)
            # Reading what it missed is paid once, and then earned back time by time.
            advantage = gain + optimism - rate * (one + max(0.0, reading - one) / times)
        if looked_up.at_risk > self.AT_RISK * reading:
            return max(advantage, rate * (looked_up.at_risk - self.AT_RISK * reading))
        return advantage

    def first_pass(self, session: Session) -> float:
        """Seconds until its first token."""
        if self._first is None:
            self._behind = self._unread(session)
            self._first = self._first_pass(self._behind)
        return self._first

    def missed(self, session: Session) -> float:
        """Seconds of that for reading what it missed."""
        return self.first_pass(session) - self._one

    @property
    def reads_states(self) -> bool:
        """Whether it drafts from the target's hidden states."""
        return bool(self.source.hidden)

    def ready(self) -> bool:
        """Whether it can be asked here, or has to be told hidden states first."""
        return not self.reads_states or self.profile.states.ready()

    def _unread(self, session: Session) -> int:
        unread = self.source.unread(session)
        return self.profile.states.unread(unread) if self.reads_states else unread

    def due(self, session: Session, spare: float) -> bool:
        """Whether it is time to try one that did not pay, and so many seconds cover that, and
        asking it afterwards: else there would be no use in knowing."""
        held = len(session.context)
        if not self.profile.costs or held - self.asked_at < self.interval:
            return False
        return self._first_pass(self.REVIEWED) + self.first_pass(session) <= spare

    def reviewed(self, held: int, plan: AdaptivePlan, draft: PlannedDraft) -> None:
        """It was tried on the last few tokens."""
        assert self._before is not None
        assert self._prospects is not None
        self.asked_at = self._reviewed_at = held
        value, one = DraftValue(plan), plan.rate * self._one
        for estimator, features, right in draft.reviewed:
            if right is not None:
                estimator.learn(features, right)
                self._before.learn(self._features, right)
            foreseen = self._before.predict(self._features)
            gain = value.prospect(estimator.predict(features), foreseen, one)
            for kind in (NONE, POOR):
                self._count(kind, self._prospects.gain(foreseen), gain)
        self.interval = min(self.interval * 2, max(self.LONGEST_INTERVAL, self._first_interval))

    def right(self, right: bool) -> None:
        """Whether the first token of a draft was."""
        assert self._before is not None
        self._before.learn(self._features, right)

    def asked(self, held: int, plan: AdaptivePlan, gain: float) -> None:
        """It was asked, and gained so many tokens before the cost of its first pass."""
        self.profile.learn_prospect(plan.lookup_kind, plan.prospect, gain)
        self._count(plan.lookup_kind, plan.prospect, gain)
        self.asked_at = held
        self.interval = self._first_interval

    def _count(self, kind: int, foreseen: float, came: float) -> None:
        keep = self.KEEP
        self._foreseen[kind] = self._foreseen[kind] * keep + foreseen
        self._came[kind] = self._came[kind] * keep + came
        self._times[kind] = self._times[kind] * keep + 1.0

    def _first_pass(self, unread: int) -> float:
        """Seconds until its first token, `unread` tokens behind."""
        return self._one if unread == 1 else min(self._pass(unread), unread * self._one)
