"""What the adaptive planner keeps of each source during one answer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import mean
from typing import NamedTuple

from localspec.decoding.interfaces import LookupSource, ModelSource, Prediction
from localspec.decoding.session import Session
from localspec.planning.acceptance_estimator import AcceptanceEstimator
from localspec.planning.draft_value import DraftValue
from localspec.planning.pair_profile import LOOKUP_KINDS, SourceProfile
from localspec.planning.plan import AdaptivePlan, PlannedDraft

NONE, POOR, FAIR, GOOD = range(4)
"""What the lookup sources offer: nothing, too little to draft, a draft, a sure one. What a model
source adds is learned apart for each: see `SourceProfile.gains`."""

USUAL_CHANCES = (0.32, 0.62, 0.85, 0.97, 0.99)
"""What a draft model's first token is likely to be right with: quantiles over the embedded pair and
SmolLM2-135M drafting for itself in another quantization together, see `tools.fit_priors`. (Apart:
0.23, 0.52, 0.77, 0.93, 0.99 and 0.43, 0.70, 0.91, 0.99, 0.99.)"""


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

    What it gains is estimated from all times it was asked, the latest weighing most: a single one
    may gain three tokens or none, and a few unlucky ones in a row say little.

    Attributes:
        interval: tokens until it is tried again, if it did not pay.
        asked_at: tokens of context when it was asked last.
        onward: how likely its next token was lately, where the ones before it were.
    """

    FIRST_INTERVAL, LONGEST_INTERVAL = 16, 64
    KEEP = 0.91
    """Weight of the past per time of asking."""
    EARLIER = 6.0
    """Times of asking that what was learned in earlier answers counts for."""
    BONUS = 0.15
    """Tokens, over the root of the times counted: what is not well known is tried (optimism in the
    face of uncertainty; Lattimore & Szepesvári 2020, chapter 7)."""
    HORIZON = 16
    """Times of asking over which the cost of catching up with the text is spread, more in a long
    answer."""
    REVIEWED = 8
    """Tokens that it is tried on while it is not asked."""
    AT_RISK = 2.0
    """A copy is checked with it where so many times the cost of asking is at risk."""

    def __init__(self, source: ModelSource, profile: SourceProfile, row_overhead: float) -> None:
        self.source = source
        self.profile = profile
        self.interval = self.FIRST_INTERVAL
        self.asked_at = -1
        self.onward = 0.75
        self._gains: list[float] = []  # sums, by what the lookup sources offered
        self._times: list[float] = []
        self._row_overhead = row_overhead

    def begin(self, held: int, value: Callable[[], DraftValue], rate: float) -> None:
        """Before each step; `value` of a draft there, `rate` in tokens per second."""
        if self.asked_at >= 0 or not self.profile.costs:
            return
        self.asked_at = held
        worth, one = value(), rate * self._first_pass(1, held)
        expected = mean(worth.prospect(chance, one) for chance in USUAL_CHANCES)
        self._times = [self.EARLIER] * LOOKUP_KINDS
        self._gains = [
            self.EARLIER * self.profile.expected_gain(kind, expected)
            for kind in range(LOOKUP_KINDS)
        ]

    def gain(self, kind: int) -> float:
        """Tokens that asking it is expected to gain, optimistically."""
        times = self._times[kind]
        return self._gains[kind] / times + self.BONUS / math.sqrt(times)

    def advantage(self, session: Session, looked_up: LookupValue, rate: float) -> float:
        """Tokens that asking it gains over what it costs; above 0 it pays."""
        if not self.profile.costs:
            return -1.0
        held, unread = len(session.context), self.source.unread(session)
        one = self._first_pass(1, held)
        reading = self._first_pass(unread, held)
        # Reading what it missed is paid once, and then earned back time by time.
        missed = reading - one if unread > 1 else 0.0
        times = max(self.HORIZON, session.room // 4)
        advantage = self.gain(looked_up.kind) - rate * (one + missed / times)
        if looked_up.at_risk > self.AT_RISK * reading:
            return max(advantage, rate * (looked_up.at_risk - self.AT_RISK * reading))
        return advantage

    def first_pass(self, session: Session) -> float:
        """Seconds until its first token."""
        return self._first_pass(self.source.unread(session), len(session.context))

    def missed(self, session: Session) -> float:
        """Seconds of that for reading what it missed."""
        return self.first_pass(session) - self._first_pass(1, len(session.context))

    def due(self, session: Session, spare: float) -> bool:
        """Whether it is time to try one that did not pay, and so many seconds cover that, and
        asking it afterwards: else there would be no use in knowing."""
        held = len(session.context)
        if not self.profile.costs or held - self.asked_at < self.interval:
            return False
        return self._first_pass(self.REVIEWED, held) + self.first_pass(session) <= spare

    def reviewed(self, held: int, plan: AdaptivePlan, draft: PlannedDraft) -> None:
        """It was tried on the last few tokens."""
        self.asked_at = held
        value, one = DraftValue(plan), plan.rate * self._first_pass(1, held)
        for estimator, features, right in draft.reviewed:
            if right is not None:
                estimator.learn(features, right)
            gain = value.prospect(estimator.predict(features), one)
            for kind in (NONE, POOR):
                self._count(kind, gain)
        self.interval = min(self.interval * 2, self.LONGEST_INTERVAL)

    def asked(self, held: int, lookup_kind: int, gain: float) -> None:
        """It was asked, and gained so many tokens before the cost of its first pass."""
        self.profile.gained(lookup_kind, gain)
        self._count(lookup_kind, gain)
        self.asked_at = held
        self.interval = self.FIRST_INTERVAL

    def _count(self, kind: int, gain: float) -> None:
        self._gains[kind] = self._gains[kind] * self.KEEP + gain
        self._times[kind] = self._times[kind] * self.KEEP + 1.0

    def _first_pass(self, unread: int, held: int) -> float:
        """Seconds until its first token, `unread` tokens behind."""
        costs = self.profile.costs
        seconds = min(costs.seconds(unread, held), unread * costs.seconds(1, held))
        return seconds + self._row_overhead
