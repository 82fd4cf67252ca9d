"""What the adaptive planner keeps of each source during one answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from localspec.decoding.interfaces import LookupSource, ModelSource, Prediction
from localspec.decoding.session import Session
from localspec.planning.acceptance_estimator import AcceptanceEstimator
from localspec.planning.draft_value import DraftValue
from localspec.planning.pair_profile import SourceProfile
from localspec.planning.plan import AdaptivePlan, PlannedDraft

NONE, POOR, FAIR, GOOD = range(4)
"""What the lookup sources offer: nothing, too little to draft, a draft, a sure one. What a model
source adds is learned apart for each: see `SourceProfile.gains`."""


class LookupValue(NamedTuple):
    """What the lookup sources offer at one place, by the best of them.

    Attributes:
        kind: NONE … GOOD.
        worth: of the best beginning of its chain, as the tree builder counts; plain decoding's at
            least.
        at_risk: seconds lost if its first token is rejected.
    """

    kind: int
    worth: float
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
    """Whether to ask a model source, by what asking it brought in this answer.

    Attributes:
        gains: tokens gained lately, by what the lookup sources offered; empty before the first
            step.
        interval: tokens until it is tried again, if it did not pay.
        asked_at: tokens of context when it was asked last.
        onward: how likely its next token was lately, where the ones before it were.
    """

    FIRST_INTERVAL, LONGEST_INTERVAL = 16, 64
    CREDIT, GAIN_RATE = 0.25, 0.12
    """What asking is worth more than usual when an answer begins, in costs of asking, and how
    quickly what it brings replaces that."""
    HORIZON = 16
    """Times of asking over which the cost of catching up with the text is spread, more in a long
    answer."""
    AT_RISK = 2.0
    """A copy is checked with it where so many times the cost of asking is at risk."""

    def __init__(self, source: ModelSource, profile: SourceProfile, row_overhead: float) -> None:
        self.source = source
        self.profile = profile
        self.gains: list[float] = []
        self.interval = self.FIRST_INTERVAL
        self.asked_at = -1
        self.onward = 0.75
        self._row_overhead = row_overhead

    def begin(self, held: int) -> None:
        if self.asked_at < 0:
            self.asked_at = held

    def advantage(self, session: Session, looked_up: LookupValue, rate: float) -> float:
        """Tokens that asking it gains over what it costs; above 0 it pays."""
        if not self.profile.costs:
            return -1.0
        held, unread = len(session.context), self.source.unread(session)
        one = self._first_pass(1, held)
        if not self.gains:
            # Every answer gives it some credit: the last one may have been unlike it.
            credit = self.CREDIT * rate * one
            self.gains = [gain + credit for gain in self.profile.gains]
            if self.profile.gains[NONE] < credit:
                self.interval = self.LONGEST_INTERVAL  # it has not paid for long: no hurry
        reading = self._first_pass(unread, held)
        # Reading what it missed is paid once, and then earned back time by time.
        missed = reading - one if unread > 1 else 0.0
        times = max(self.HORIZON, session.room // 4)
        advantage = self.gains[looked_up.kind] - rate * (one + missed / times)
        if looked_up.at_risk > self.AT_RISK * reading:
            return max(advantage, rate * (looked_up.at_risk - self.AT_RISK * reading))
        return advantage

    def due(self, held: int) -> bool:
        """Whether it is time to try one that did not pay."""
        return bool(self.profile.costs) and held - self.asked_at >= self.interval

    def reviewed(self, held: int, plan: AdaptivePlan, draft: PlannedDraft) -> None:
        """It was tried on the last few tokens."""
        self.asked_at = held
        value, one = DraftValue(plan), plan.rate * self._first_pass(1, held)
        for estimator, features, right in draft.reviewed:
            if right is not None:
                estimator.learn(features, right)
            gain = value.prospect(estimator.predict(features), one)
            for kind in (NONE, POOR):
                self.gains[kind] += self.GAIN_RATE * (gain - self.gains[kind])
        self.interval = min(self.interval * 2, self.LONGEST_INTERVAL)

    def asked(self, held: int, lookup_kind: int, gain: float) -> None:
        """It was asked, and gained so many tokens before the cost of its first pass."""
        self.profile.gained(lookup_kind, gain)
        self.gains[lookup_kind] += self.GAIN_RATE * (gain - self.gains[lookup_kind])
        self.asked_at = held
        self.interval = self.FIRST_INTERVAL

    def _first_pass(self, unread: int, held: int) -> float:
        """Seconds until its first token, `unread` tokens behind."""
        costs = self.profile.costs
        seconds = min(costs.seconds(unread, held), unread * costs.seconds(1, held))
        return seconds + self._row_overhead
