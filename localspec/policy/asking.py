"""Whether a model source is asked at a step, and whether it reads the prompt at all."""

from __future__ import annotations

from localspec.decoding.session import Session
from localspec.decoding.sources import ModelSource
from localspec.policy.profile import PairProfile

SECOND = "second"
"""Kind of estimator of further choices; one of that name and the kind of the first is preferred."""
BEST = 0.95  # accept probability of a drafted token, at best


class Asking:
    """A model source during one answer.

    Attributes:
        first, second: estimators of its first choices, and of the others.
        seconds: of its passes, by their tokens; `one`: of one over a token.
        missed: seconds that catching up with the text adds to its next pass.
        onward: probability of its next token, if those before it were right, lately.
    """

    HORIZON = 8  # uses over which the cost of catching up with the text is spread
    INTERVAL, LONGEST, BURST = 16, 64, 2
    """Steps between trials where it does not pay, doubled with each in vain; and steps of a
    trial."""
    TRIALS = 0.02  # share of plain decoding that trials may take
    ONWARD_RATE = 0.05

    def __init__(self, source: ModelSource, profile: PairProfile, session: Session) -> None:
        self.source, self.profile = source, profile.source(source)
        estimators, kind = self.profile.estimators, source.kind(session)
        self.first = estimators[kind]
        self.second = estimators.get(f"{SECOND} {kind}", estimators[SECOND])
        self._pair = profile
        self.onward = 0.75
        self.burst, self._interval = 0, self.INTERVAL
        self.next_trial = self.INTERVAL

    def look(self, session: Session) -> bool:
        """Before each step; whether its passes were ever measured."""
        if not self.profile.costs:
            return False
        seconds = self._pair.pass_seconds(self.profile, self.source.held(session.context))
        self.seconds, self.one = seconds, seconds(1)
        unread = self.source.unread(session.context)
        self.missed = max(0.0, min(seconds(unread), unread * self.one) - self.one)
        return True

    def advantage(self, rate: float) -> float:
        """Tokens that asking it gains over what it costs."""
        price = self.one + self.missed / self.HORIZON
        return self.profile.gain.hoped - rate * price

    def chosen(self, step: int, rate: float, *, pays: bool) -> None:
        """It is asked at this step."""
        if pays:
            self._interval, self.burst = self.INTERVAL, 0
        elif self.burst:
            self.burst -= 1
        else:
            self._interval, self.burst = min(2 * self._interval, self.LONGEST), self.BURST - 1
            gain = self.profile.gain
            gain.count = min(gain.count, 2.0)  # what it was long ago says little
        dear = int(rate * (self.missed + self.BURST * self.one) / self.TRIALS)
        self.next_trial = step + max(self._interval, dear)


def repays(profile: PairProfile, model: ModelSource, session: Session, known: int) -> bool:
    """Whether a model source can earn back reading the prompt in an answer of the usual length: at
    first as the best drafts would, then as it did lately. True where costs are not known yet.

    Args:
        known: tokens of the prompt that need not be read any more.
    """
    prompt, source = session.context, profile.source(model)
    reads = model.reads(prompt, known)
    if not reads or not profile.target or not source.costs:
        return True
    longest = session.limit - len(prompt)
    verifying, seconds = profile.verifying(len(prompt), 8), profile.pass_seconds(source, reads)
    best, tokens = verifying[1], 1.0
    for depth in range(1, 9):
        tokens += BEST**depth
        best = min(best, (verifying[depth + 1] + depth * seconds(1)) / tokens)
    saved = 1.0 - best / verifying[1] if source.saved is None else source.saved
    # Halfway, on average, does a token of the prompt look back.
    reading = profile.pass_seconds(source, reads // 2)(reads)
    plain = min(longest, profile.usual_length) * verifying[1]
    if reading <= saved * plain:
        return True
    source.left_out(reading / plain)
    return False
