"""How many threads passes run on, decided while they run.

The threads of a pass wait for each other by spinning. Where another process takes one of their
cores, the others burn theirs until it is back: two threads on two busy cores are then slower than
one, by a factor of up to twenty. So the best count changes with what else the machine does.

What tells is how long passes take, against what they took undisturbed (`UsualTimes`); how much of
the machine other processes use; and how much of the cores that its threads want this process gets.
None is trusted alone: a change is a *trial* of a few passes on the other count, which stays if they
were cheaper. A trial of fewer threads costs little. One of more threads on a busy machine is very
dear, so each failure makes the next wait longer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

from localspec.policy.recent_passes import ENOUGH, LONG, WINDOW, RecentPasses, ThreadTrial
from localspec.policy.usual_times import UsualTimes

BUSY = 0.35
"""Cores that others use: from so many on the machine is busy."""
ROOM = 0.3
"""How far other processes may reach into a core that a thread of ours is to have."""
SLOW = 1.3
"""Passes that take so many times what they usually do ask for a trial of fewer threads."""
STARVED = 0.6
"""Threads that get so much of their cores at most are kept from them."""
GAIN = 0.97
"""A count is kept if passes cost at most so much of what they cost on the one before."""
DEAR = 1.5
"""A trial ends with a pass that costs so many times what one did before."""
FIRST_WAIT, BLIND_WAIT, SURE_WAIT, LAST_WAIT = 0.4, 0.5, 15.0, 60.0
"""Seconds until a count that failed is tried again: the first time, where nobody knows what others
use, where they are seen to leave no room, and after many failures."""
GROWTH = 1.9
"""Of a wait with each failure."""
SHORTCUTS, REFILL = 4, 10.0
"""Waits may be cut short so many times in a row, because others left meanwhile; one more time
every so many seconds."""
LATEST = 3
"""The passes that tell what a disturbed one costs now."""
LASTED = 5.0
"""Seconds on a count after which leaving it is no failure of the trial that led there."""
SHARE, AGAIN = 0.01, 120.0
"""Of the time, for looking at fewer threads on an idle machine; seconds until such a look is
repeated, where it was close."""
CLOSE, MUCH = 1.15, 0.8
GAP = 1.0
"""Seconds without a pass, after which the ones before say nothing of now."""
CHUNK_SECONDS, LEAST_CHUNK = 0.4, 64
"""A prompt is read in chunks that take about so long, and have at least so many tokens: between
two of them the threads may change."""


@dataclass(slots=True)
class _Left:
    """A count that was tried and left.

    Attributes:
        wait: seconds until it may be tried again, more after each failure.
        not_before: the time of that.
        busy: whether others left no room for it then.
    """

    wait: float
    not_before: float = -inf
    busy: bool = False


class ThreadController:
    """Chooses among thread counts, pass by pass.

    Args:
        counts: what to choose from, in any order; the largest is where it begins.
        cores: that this process may use.
        others: cores that other processes use at present; None where that is not known.
        at_once: the same of this very moment, which takes a blink; None where `others` has to do.
        clock: tells seconds.
        whole_prompts: prompts are read in chunks as long as they may be. A device computes those,
            also for layers that stay in main memory: it is sent their weights anew for each chunk.
        reason: why there is nothing to choose, where that is so.

    Attributes:
        count: what the next pass should run on.
        reason: why, the end of a sentence.
        moves: how often it changed.
    """

    def __init__(
        self,
        counts: Sequence[int],
        *,
        cores: int,
        others: Callable[[], float | None],
        clock: Callable[[], float],
        at_once: Callable[[], float | None] | None = None,
        whole_prompts: bool = False,
        reason: str = "nothing disturbs them",
    ) -> None:
        self.counts = sorted(set(counts))
        self.count = self.counts[-1]
        self.reason = reason
        self.moves = 0
        self._cores, self._whole_prompts = cores, whole_prompts
        self._others, self._clock, self._at_once = others, clock, at_once or others
        self._usual = UsualTimes()
        self._recent = RecentPasses()
        self._trial: ThreadTrial | None = None
        self._since, self._last = clock(), -inf
        self._left: dict[int, _Left] = {}
        self._shortcuts, self._refilled = float(SHORTCUTS), self._since
        self._looked: dict[int, float] = {}  # what fewer threads cost on an idle machine

    @property
    def steady(self) -> bool:
        """Whether the count has lasted a while, and is no trial."""
        return self._trial is None and self._clock() - self._since > LASTED

    @property
    def trying(self) -> bool:
        """Whether the present count is a trial."""
        return self._trial is not None

    def begin(self) -> None:
        """Passes begin after a pause: nothing but what others use is known of the present."""
        if len(self.counts) == 1 or self._clock() - self._last < GAP:
            return
        self._recent.clear()
        if self._trial is not None:
            self._end(self._trial, keep=False)
        others = self._others()
        if others is None or self._fewer_are_faster():
            return
        if others >= BUSY:  # all through the pause; now as well?
            now = self._at_once()
            others = others if now is None else now
        best = max((n for n in self.counts if self._fits(n, others)), default=self.counts[0])
        if others < BUSY:
            self._move(best, _ROOM)
        elif best < self.count:
            self._move(best, _taken(others))

    def observe(
        self, user: str, tokens: int, context: int, seconds: float, cores: float | None = None
    ) -> None:
        """Learn from a pass on `count` threads, and decide what the next one runs on.

        Args:
            user: whose pass it was, the target's or a draft model's.
            tokens: it was over so many.
            context: behind so many cached ones.
            seconds: that it took.
            cores: that this process had since this was called last, at least; None where too short
                a time went by to tell.
        """
        if len(self.counts) == 1 or seconds <= 0.0:
            return
        self._last = self._clock()
        self.learn(user, tokens, context, seconds)
        if self._trial is not None:
            self._judge(self._trial)
            return
        slowness = self._recent.slowness()
        if slowness is not None and not self._go_down(slowness, cores):
            self._go_up()

    def learn(self, user: str, tokens: int, context: int, seconds: float) -> None:
        """Learn from a pass that is followed by another one of the same step: see `observe`."""
        if seconds <= 0.0:
            return
        trial = self._trial
        usual = self._usual.learn(self.count, user, tokens, context, seconds)
        if trial is not None:
            base = self._usual.seconds(trial.base, user, tokens, context)
            if base is not None:
                trial.passes.setdefault(user, []).append((seconds, base))
            else:
                trial.unknown += 1
            return
        self._recent.add((user, tokens, context), seconds, usual)

    def chunk(self, user: str, context: int, most: int) -> int:
        """Tokens of the next chunk of a prompt: fewer where little is known of the present, so
        that a pass that stumbles is over soon."""
        if len(self.counts) == 1 or self._whole_prompts:
            return most
        per_token = self._usual.per_token(self.count, user, context)
        if per_token is None:
            return min(most, LEAST_CHUNK)
        slowness = max(1.0, self._recent.slowness_of_last(2))
        size = int(CHUNK_SECONDS / (per_token * slowness)) // LEAST_CHUNK * LEAST_CHUNK
        return max(min(LEAST_CHUNK, most), min(most, size))

    def price(self, count: int, other: int) -> float | None:
        """What passes on `count` threads cost, in those on `other` ones, undisturbed; None where
        no pass of one kind ran on both."""
        return self._usual.price(count, other)

    def _fits(self, count: int, others: float) -> bool:
        return count <= self._cores - others + ROOM

    def _go_down(self, slowness: float, cores: float | None) -> bool:
        """Try fewer threads if that promises something."""
        lower = [n for n in self.counts if n < self.count]
        if not lower:
            return False
        now, others = self._clock(), self._others()
        starved = cores is not None and cores < STARVED * self.count
        count = lower[-1]
        if others is not None and others >= BUSY:
            count = max((n for n in lower if self._fits(n, others)), default=lower[0])
        elif cores is not None and starved:
            count = max((n for n in lower if n <= cores + ROOM), default=lower[0])
        if not self._may_try(count, now):
            return False
        if slowness > SLOW:
            # Never tried, it can only be guessed at; a few passes tell.
            price = self._usual.price(count, self.count)
            if price is not None and price * GAIN > slowness:
                return False
            seen = others is not None and others >= BUSY
            reason = _taken(others or 0.0) if seen else "passes were slower than usual"
            # The first of them may be from before.
            self._try(count, LATEST, reason, FIRST_WAIT)
            return True
        crowd, reason = 1.0, ""
        if others is not None and others >= BUSY:
            crowd, reason = 1.0 + others, _taken(others)
        elif cores is not None and starved:
            crowd, reason = self.count / max(cores, 0.1), _KEPT
        if reason:
            price = self._usual.price(count, self.count)
            if price is not None and price * GAIN > slowness * crowd:
                return False
            self._try(count, WINDOW, reason, BLIND_WAIT)
            return True
        return self._look(count, now)

    def _look(self, count: int, now: float) -> bool:
        """On an idle machine, see what fewer threads cost, where that was never seen, or where it
        was close; at no more than a small part of the time."""
        known = self._looked.get(count, 0.0)
        wait = AGAIN if known else 0.0
        if 2 * count < self.count or known > CLOSE:
            return False
        extra = ENOUGH * self._recent.mean * (self.count / count - 1.0)
        unseen = self._others() is None and not known  # it may be busy: how would one know?
        if not unseen and now - self._since < max(wait, extra / SHARE):
            return False
        self._try(count, LATEST, _AS_FAST, FIRST_WAIT, look=True)
        return True

    def _fewer_are_faster(self) -> bool:
        """Whether the present count was chosen on an idle machine."""
        return self._looked.get(self.count, inf) * GAIN < 1.0

    def _go_up(self) -> None:
        """Try more threads where there is room for them."""
        higher = [n for n in self.counts if n > self.count]
        if not higher:
            return
        now, others = self._clock(), self._others()
        count = higher[0]
        if others is not None:
            count = max((n for n in higher if self._fits(n, others)), default=count)
        if self._fewer_are_faster() and now - self._since < (
            SURE_WAIT if others is None else AGAIN
        ):
            return
        room = others is not None and self._fits(count, others)
        left = self._left.get(count)
        gone = room and left is not None and left.busy  # what made it fail
        price = self._usual.price(self.count, count)
        if not gone and price is not None and price < CLOSE and now - self._since < SURE_WAIT:
            return  # little to gain, and much to lose where another process comes back
        if not self._may_try(count, now):
            if not (gone and self._cut_short(now)):
                return
        elif others is not None and not room and now - self._since < SURE_WAIT:
            return
        reason = _ROOM if room else "more were tried, and are faster"
        wait = FIRST_WAIT if room else BLIND_WAIT if others is None else SURE_WAIT
        self._try(count, WINDOW, reason, wait)

    def _try(
        self, count: int, latest: int, reason: str, wait: float, *, look: bool = False
    ) -> None:
        """Begin a trial. `latest`: of how many passes the price is that it has to beat."""
        self._left.setdefault(count, _Left(wait))
        price = self._recent.price(self.count, self._usual, latest)
        if look and self._others() is not None:
            price = min(price, 1.0)  # nobody disturbs these passes: what made one longer is over
        lasted = self._clock() - self._since
        self._trial = ThreadTrial(self.count, price, self.reason, self._others(), lasted, look)
        self._move(count, reason)

    def _judge(self, trial: ThreadTrial) -> None:
        """Keep the count, give it up, or wait for another pass."""
        passes = trial.telling
        if not passes:
            if trial.unknown >= WINDOW:
                self._end(trial, keep=True)
            return
        price = trial.price
        if len(passes) < ENOUGH and sum(seconds for seconds, _ in passes) < LONG:
            # The first pass wakes threads, and may meet a hiccup.
            dear = price > DEAR * max(trial.before, 1.0 if self.count > trial.base else SLOW)
            if not dear or (len(passes) < 2 and self.count < trial.base):
                return
            self._end(trial, keep=False)
            return
        self._end(trial, keep=price < GAIN * trial.before)

    def _end(self, trial: ThreadTrial, *, keep: bool) -> None:
        count, now, others = self.count, self._clock(), self._others()
        self._trial = None
        if trial.look and trial.passes:
            found = trial.price / trial.before
            # Where nobody knows what others use, so great a gain, or slow passes before, mean that
            # they were at work.
            trial.look = others is not None or (found > MUCH and trial.before < CLOSE)
            if trial.look:
                self._looked[count] = found
        if keep:
            self._recent.clear()
            self._since = now
            self._left.setdefault(count, _Left(FIRST_WAIT)).not_before = -inf
            if count > trial.base:  # whatever a look there told
                self._looked.pop(trial.base, None)
            if count < trial.base and not trial.look:
                # Down again: was it up there for long?
                self._leave(trial.base, now, trial.others, short=trial.lasted < LASTED)
            return
        if not trial.look:
            self._leave(count, now, others, short=True)
        self._move(trial.base, trial.earlier)
        self.moves -= 2  # there and back is none
        self._since = now - trial.lasted

    def _move(self, count: int, reason: str) -> None:
        if count == self.count:
            return
        self.count, self.reason = count, reason
        self.moves += 1
        self._recent.clear()
        self._since = self._clock()

    def _may_try(self, count: int, now: float) -> bool:
        left = self._left.get(count)
        return left is None or now >= left.not_before

    def _leave(self, count: int, now: float, others: float | None, *, short: bool) -> None:
        """A count was left, after a short time or a long one; `others`: cores that they used."""
        first = FIRST_WAIT if others is not None else BLIND_WAIT
        left = self._left.setdefault(count, _Left(first))
        left.wait = min(LAST_WAIT, GROWTH * left.wait) if short else first
        left.not_before = now + left.wait
        left.busy = others is not None and others >= BUSY

    def _cut_short(self, now: float) -> bool:
        """Whether a wait may be cut short once more, which it is then."""
        gained = (now - self._refilled) / REFILL
        self._shortcuts, self._refilled = min(SHORTCUTS, self._shortcuts + gained), now
        if self._shortcuts < 1.0:
            return False
        self._shortcuts -= 1.0
        return True


_ROOM = "other processes leave room for them"
_AS_FAST = "more of them are no faster"
_KEPT = "more of them were kept from their cores"


def _taken(others: float) -> str:
    return f"other processes use {others:.1f} cores"
