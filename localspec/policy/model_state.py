"""Whether a model source drafts in a step, and whether it reads the prompt at all."""

from localspec.decoding.session import Session
from localspec.decoding.sources import ModelSource
from localspec.policy.profile import PairProfile

SECOND = "second"
"""Kind of estimator of further choices; "second KIND", if present, takes precedence."""
BEST = 0.95  # highest accept probability of a drafted token


class ModelState:
    """A model source during one answer.

    Attributes:
        credit: the name under which its proposals are counted.
        first, second: acceptance estimators of its first choice, and of the others.
        seconds: of its passes, by number of tokens; `token_seconds`: of a pass over one token.
        catch_up_seconds: extra time of its next pass to read the unread text.
        continuation: recent probability that its next token is right if all before it are.
    """

    HORIZON = 8  # uses over which the cost of catching up with the text is spread
    INTERVAL, LONGEST, BURST = 16, 64, 2
    """First and longest interval between trials while it does not pay, in steps; it doubles after
    each failure. Steps of a trial."""
    TRIALS = 0.02  # share of plain decoding that trials may take
    CONTINUATION_RATE = 0.05

    def __init__(self, source: ModelSource, profile: PairProfile, session: Session) -> None:
        self.source, self.profile = source, profile.source(source)
        estimators, kind = self.profile.estimators, source.kind(session)
        self.first = estimators[kind]
        self.second = estimators.get(f"{SECOND} {kind}", estimators[SECOND])
        self._pair, self.credit = profile, source.credit
        self.continuation = 0.75
        self.burst, self._interval = 0, self.INTERVAL
        self.next_trial = self.INTERVAL

    def refresh(self, session: Session) -> bool:
        """Update the costs before a step; False if its passes were never measured."""
        if not self.profile.costs:
            return False
        seconds = self._pair.pass_seconds(self.profile, self.source.held(session.context))
        self.seconds, self.token_seconds = seconds, seconds(1)
        unread = self.source.unread(session.context)
        one = self.token_seconds
        self.catch_up_seconds = max(0.0, min(seconds(unread), unread * one) - one)
        return True

    def advantage(self, rate: float) -> float:
        """Expected gain of using it, in tokens, less its cost."""
        price = self.token_seconds + self.catch_up_seconds / self.HORIZON
        return self.profile.gain.upper_bound - rate * price

    def record_use(self, step: int, rate: float, *, pays: bool) -> None:
        """Schedule the next trial after a step that uses it."""
        if pays:
            self._interval, self.burst = self.INTERVAL, 0
        elif self.burst:
            self.burst -= 1
        else:
            self._interval, self.burst = min(2 * self._interval, self.LONGEST), self.BURST - 1
            gain = self.profile.gain
            gain.count = min(gain.count, 2.0)  # old observations mean little by now
        cost = rate * (self.catch_up_seconds + self.BURST * self.token_seconds)
        self.next_trial = step + max(self._interval, int(cost / self.TRIALS))


def repays_prompt(profile: PairProfile, model: ModelSource, session: Session, known: int) -> bool:
    """Whether a model source can earn back reading the prompt in an answer of the usual length.

    At first the savings of ideal drafts are assumed, later the measured ones. True if costs are
    not known yet.

    Args:
        known: tokens of the prompt that are cached already.
    """
    prompt, source = session.context, profile.source(model)
    reads = model.reads(prompt, known)
    if not reads or not profile.target or not source.costs or profile.uncertain:
        return True
    longest = session.limit - len(prompt)
    verifying, seconds = profile.verifying(len(prompt), 8), profile.pass_seconds(source, reads)
    best, tokens = verifying[1], 1.0
    for depth in range(1, 9):
        tokens += BEST**depth
        best = min(best, (verifying[depth + 1] + depth * seconds(1)) / tokens)
    saved = 1.0 - best / verifying[1] if source.saved is None else source.saved
    # An upper bound: unlike prefill, measured passes compute a row for each token.
    reading = reads * min(seconds(n) / n for n in source.costs.sizes)
    plain = min(longest, profile.usual_length) * verifying[1]
    repays = reading <= saved * plain
    if not repays:
        source.record_omission(reading / plain)
    source.left_out = not repays and source.saved is None
    return repays
