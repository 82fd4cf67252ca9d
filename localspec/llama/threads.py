"""How many threads passes run on: fewer while other processes take their cores.

The threads of a pass wait for each other by spinning, so one that lacks its core stops all. While
other processes use BUSY cores and leave too few, fewer threads are tried for some passes, and kept
if these take less; more again when there is room. Waits double after attempts in vain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Any, Protocol

from localspec.llama import library
from localspec.llama.model import Model
from localspec.llama.options import ModelOptions
from localspec.llama.other_processes import OtherProcesses

BUSY = 0.35
ROOM = 0.3  # how far other processes may reach into a core that a thread of ours is to have
WINDOW, LONG = 4, 1.0  # passes of a trial; two will do that took so many seconds
CROWDED = 3  # passes in a row without room that a trial is made after
GAIN = 0.97  # a trial succeeds if passes cost at most so much of what they cost before
RATE = 0.5  # weight of the latest pass of a kind
WAIT, LAST_WAIT, LASTED = 0.4, 30.0, 5.0
"""Seconds until an attempt is repeated, at first and at most; so long more threads have to last."""
GAP = 1.0  # seconds without a pass, after which the ones before say nothing of now
LARGEST = 16  # tokens of a pass; larger ones are known by their seconds per token
CHUNK = 128  # tokens of a prompt between which the threads may change


class Threaded(Protocol):
    """Passes whose threads can be set; `localspec.llama.context.Context` is one."""

    watch: Any

    def set_threads(self, count: int) -> None: ...


class Threads:
    """Decides on how many threads passes run, between two steps or two chunks of a prompt; the
    `localspec.llama.native_context.PassWatch` of the target.

    Args:
        counts: what to choose from; the largest is that of the cores.
        others: cores that other processes use at present; None where that is not known.
        draft: whether the draft model's count changes, too.
        whole_prompts: prompts are not read in chunks, as on a device.
        reason: why the largest count, the end of a sentence.
    """

    def __init__(
        self,
        counts: Sequence[int],
        *,
        others: Callable[[], float | None],
        draft: bool = True,
        whole_prompts: bool = False,
        reason: str = "no other program needs a core",
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self.counts = sorted(set(counts))
        self.count = self._applied = self.counts[-1]
        self.reason = reason
        self._draft, self._whole_prompts = draft, whole_prompts
        self._others, self._clock = others, clock
        self._recent: dict[tuple[int, int], float] = {}  # seconds, by count and kind of pass
        self._before = 0  # count before the trial under way, 0 without one
        self._tried: list[tuple[float, float]] = []  # its passes: seconds, and those before
        self._since, self._last = clock(), float("-inf")
        self._down, self._up = WAIT, WAIT  # seconds from `_since` on
        self._crowded = 0
        self._measuring = False
        self._passes: Sequence[Threaded] = ()

    @property
    def all(self) -> bool:
        return self._applied == self.counts[-1]

    @property
    def why(self) -> str:
        """How many threads there are at present, and why."""
        if len(self.counts) == 1:
            return f"{self.count}, {self.reason}"
        return f"{self.count} of {self.counts[-1]}: {self.reason}"

    def serve(self, target: Threaded, *draft: Threaded) -> None:
        """Decide for these passes. Those of a draft model decide nothing: they are as fast on fewer
        threads."""
        if len(self.counts) > 1:
            self._passes = [target, *draft] if self._draft else [target]
            target.watch = self

    @contextmanager
    def still(self) -> Iterator[None]:
        """Meanwhile passes are measured: the count stays, and they say nothing of the present."""
        self._measuring = True
        try:
            yield
        finally:
            self._measuring = False

    def begin(self) -> None:
        """An answer begins: after a pause only what others use is known."""
        if len(self.counts) > 1 and self._clock() - self._last > GAP:
            self._before, others = 0, self._others()
            if others is not None and others < BUSY:
                self._move(self.counts[-1], others)
        self.between()

    def between(self) -> None:
        """A step is over, and the next not planned."""
        if self.count != self._applied:
            self._applied = self.count
            for passes in self._passes:
                passes.set_threads(self.count)

    def chunk(self, context: int, most: int) -> int:
        """Tokens of the next chunk of a prompt."""
        if self._measuring or self._whole_prompts:
            return most
        self.between()
        return min(most, CHUNK)

    def passed(self, tokens: int, context: int, seconds: float) -> None:
        """Learn from a pass."""
        # Within a step the count is that before the latest decision.
        if not self._measuring and seconds > 0.0 and self.count == self._applied:
            self._last = self._clock()
            self._decide(tokens, seconds)

    def _decide(self, tokens: int, seconds: float) -> None:
        others = self._others()
        if others is None:
            return
        if others < BUSY and self.count == self.counts[-1] and not self._before:
            self._crowded = 0
            return
        kind, units = (tokens, 1) if tokens <= LARGEST else (LARGEST, tokens)
        at, each = (self.count, kind), seconds / units
        if self._before:
            before = self._recent.get((self._before, kind))
            if before is not None:
                self._tried.append((seconds, before * units))
        known = self._recent.get(at, each)
        self._recent[at] = known + RATE * (each - known)
        fitting, lasted = self._fitting(others), self._last - self._since
        self._crowded = self._crowded + 1 if fitting < self.count else 0
        if self._before:
            self._judge(others)
        elif self._crowded >= CROWDED and lasted >= self._down:
            if lasted < LASTED:
                self._up = min(LAST_WAIT, 2.0 * self._up)
            elif self._since:
                self._up = WAIT
            self._before, self._tried = self.count, []
            self._move(fitting, others)
        elif fitting > self.count and lasted >= self._up:
            self._down = WAIT
            self._move(fitting, others)

    def _judge(self, others: float) -> None:
        """Keep the count that is tried, give it up, or wait for another pass."""
        tried = sorted(self._tried, key=lambda one: one[0] / one[1])
        if len(tried) >= WINDOW:
            tried.pop()  # a hiccup
        elif len(tried) < 2 or sum(seconds for seconds, _ in tried) < LONG:
            return
        before, self._before = self._before, 0
        if sum(seconds for seconds, _ in tried) > GAIN * sum(known for _, known in tried):
            self._down = min(LAST_WAIT, 2.0 * self._down)
            self._move(before, others)

    def _fitting(self, others: float) -> int:
        """The largest count for which others leave cores."""
        left = self.counts[-1] - (others if others >= BUSY else 0.0) + ROOM
        return max((n for n in self.counts if n <= left), default=self.counts[0])

    def _move(self, count: int, others: float) -> None:
        if count == self.count:
            return
        self.reason = f"other processes use {others:.1f} cores"
        if count > self.count:
            self.reason = "other processes leave room for them"
        self.count, self._since = count, self._clock()


def thread_choice(options: ModelOptions, target: Model) -> Threads:
    """As options say: all physical cores, half of them, or one."""
    cores = library.default_threads()
    counts, reason = [cores, max(1, cores // 2), 1], "no other program needs a core"
    if options.fixed_threads is not None:
        counts, reason = [options.fixed_threads], "as asked for"
    elif target.on_device:
        # Trials would teach nothing: no count makes its passes faster.
        counts, reason = [cores], "as a device computes the model's layers"
    elif options.rpc:
        # What its passes take says nothing about the processor of this machine.
        counts, reason = [cores], "the passes run on other machines"
    elif cores == 1:
        reason = "the only core"
    return Threads(
        counts,
        others=OtherProcesses(),
        draft=options.draft_threads is None,
        whole_prompts=library.accelerated(),
        reason=reason,
    )


def side_by_side(options: ModelOptions) -> bool:
    """Whether target and draft model have devices, or cores, of their own."""
    if options.rpc:
        return True  # its passes keep other machines busy
    if options.draft_gpu_layers not in (None, options.gpu_layers):
        return library.accelerated()
    if options.draft_threads is None or options.fixed_threads is None:
        return False  # "auto" gives the target all cores that are free
    return options.fixed_threads + options.draft_threads <= library.default_threads()
