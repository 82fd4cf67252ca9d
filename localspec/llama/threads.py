"""The number of threads for passes, which drops while other processes use cores.

The threads of a pass wait for each other by spinning, so one without a core delays them all. While
other processes use at least BUSY cores and leave too few, some passes try fewer threads, which are
kept if those passes take less time. The number rises again when cores are free. After a failed
trial the wait until the next one doubles.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from time import perf_counter, process_time

import psutil

from localspec.llama import library
from localspec.llama.context import Context
from localspec.llama.cores import default_threads
from localspec.llama.model import Model
from localspec.llama.native_context import NativeCache
from localspec.llama.options import ModelOptions

BUSY = 0.35
ROOM = 0.3  # share of a core that other processes may use while one of our threads gets it
WINDOW, LONG = 4, 1.0  # passes of a trial; two are enough if they took LONG seconds
CROWDED = 3  # successive passes without room before a trial
GAIN = 0.97  # a trial succeeds if passes take at most this share of their former time
RATE = 0.5  # weight of the latest pass of a kind
WAIT, LAST_WAIT, LASTED = 0.4, 30.0, 5.0
"""Seconds until a trial is repeated, first and longest; seconds that an increase has to last."""
GAP = 1.0  # seconds without a pass, after which earlier measurements are outdated
LARGEST = 16  # tokens of a pass; larger ones are rated by seconds per token
CHUNK = 128  # prompt tokens between changes of the number of threads
SPAN = 0.25  # minimum seconds to measure the load; systems count in hundredths, Windows in 64ths


class Threads:
    """Chooses the number of threads between two steps or two chunks of a prompt.

    Args:
        counts: the choices; the largest is the number of cores.
        others: returns the cores that other processes use now, None if unknown.
        draft: whether the draft model's count changes, too.
        whole_prompts: read prompts in full chunks, as on a device.
        reason: for the largest count; completes a sentence.
    """

    def __init__(
        self,
        counts: Sequence[int],
        *,
        others: Callable[[], float | None],
        draft: bool = True,
        whole_prompts: bool = False,
        reason: str = "all usable cores",
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self.counts = sorted(set(counts))
        self.count = self._applied = self.counts[-1]
        self.reason = reason
        self._draft, self._whole_prompts = draft, whole_prompts
        self._others, self._clock = others, clock
        self._load: float | None = None  # the latest
        self._recent: dict[tuple[int, int], float] = {}  # seconds, by count and kind of pass
        self._before = 0  # count before the current trial, 0 if there is none
        self._tried: list[tuple[float, float]] = []  # its passes: seconds, and those before
        self._since, self._last = clock(), float("-inf")
        self._down, self._up = WAIT, WAIT  # seconds from `_since` on
        self._crowded = 0
        self._measuring = False
        self._passes: Sequence[NativeCache] = ()

    @property
    def all(self) -> bool:
        return self._applied == self.counts[-1]

    @property
    def why(self) -> str:
        """The current number of threads, and the reason."""
        if len(self.counts) == 1:
            return f"{self.count}, {self.reason}"
        reason = self.reason
        if self._load is not None and self._load >= BUSY:
            reason = f"other processes use {self._load:.1f} cores"
        elif self._load is not None and self.count == self.counts[-1]:
            reason = "no other program needs a core"
        return f"{self.count} of {self.counts[-1]}: {reason}"

    def serve(self, target: Context, *draft: NativeCache) -> None:
        """Set the threads of these caches. Only the target's passes are judged: those of a draft
        model are as fast on fewer threads."""
        if len(self.counts) > 1:
            self._passes = [target, *draft] if self._draft else [target]
            target.shared.watch = self.record_pass
            target.chunk = target.chunk or self.chunk

    @contextmanager
    def hold_count(self) -> Iterator[None]:
        """Keep the count and ignore passes while they are timed for other purposes."""
        self._measuring = True
        try:
            yield
        finally:
            self._measuring = False

    def begin(self) -> None:
        """Prepare for an answer: after a pause, use all threads if other processes are idle."""
        if len(self.counts) > 1 and self._clock() - self._last > GAP:
            self._before, others = 0, self._others()
            self._load = others
            if others is not None and others < BUSY:
                self._move(self.counts[-1], others)
        self.apply()

    def apply(self) -> None:
        """Apply the chosen count, between two steps."""
        if self.count != self._applied:
            self._applied = self.count
            for passes in self._passes:
                passes.set_threads(self.count)

    def chunk(self) -> int:
        """As `Context.chunk`."""
        if self._measuring or self._whole_prompts:
            return sys.maxsize
        self.apply()
        return CHUNK

    def record_pass(self, tokens: int, seconds: float) -> None:
        # Within a step the count is that before the latest decision.
        if not self._measuring and seconds > 0.0 and self.count == self._applied:
            self._last = self._clock()
            self._decide(tokens, seconds)

    def _decide(self, tokens: int, seconds: float) -> None:
        others = self._load = self._others()
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
        fitting, lasted = self._fitting_count(others), self._last - self._since
        self._crowded = self._crowded + 1 if fitting < self.count else 0
        if self._before:
            self._evaluate_trial(others)
        elif self._crowded >= CROWDED and lasted >= self._down:
            self._up = min(LAST_WAIT, 2.0 * self._up) if lasted < LASTED else WAIT
            self._before, self._tried = self.count, []
            self._move(fitting, others)
        elif fitting > self.count and lasted >= self._up:
            self._down = WAIT
            self._move(fitting, others)

    def _evaluate_trial(self, others: float) -> None:
        """Accept the tried count, restore the previous one, or wait for another pass."""
        tried = sorted(self._tried, key=lambda trial: trial[0] / trial[1])
        if len(tried) >= WINDOW:
            tried.pop()  # an outlier
        elif len(tried) < 2 or sum(seconds for seconds, _ in tried) < LONG:
            return
        before, self._before = self._before, 0
        if sum(seconds for seconds, _ in tried) > GAIN * sum(known for _, known in tried):
            self._down = min(LAST_WAIT, 2.0 * self._down)
            self._move(before, others)

    def _fitting_count(self, others: float) -> int:
        """The largest count for which other processes leave enough cores."""
        left = self.counts[-1] - (others if others >= BUSY else 0.0) + ROOM
        return max((n for n in self.counts if n <= left), default=self.counts[0])

    def _move(self, count: int, others: float) -> None:
        if count == self.count:
            return
        self.reason = f"other processes use {others:.1f} cores"
        self.count, self._since = count, self._clock()


def thread_choice(options: ModelOptions, target: Model) -> Threads:
    """The counts that the options allow: normally all usable cores, half of them, or one."""
    cores = default_threads()
    counts, reason = [cores, max(1, cores // 2), 1], "all usable cores"
    if options.fixed_threads is not None:
        counts, reason = [options.fixed_threads], "as requested"
    elif target.on_device:
        # The count does not affect passes on a device.
        counts, reason = [cores], "as a device computes the model's layers"
    elif options.rpc:
        # The time of its passes does not depend on the processor of this machine.
        counts, reason = [cores], "the passes run on other machines"
    elif cores == 1:
        reason = "the only usable core"
    return Threads(
        counts,
        others=OtherProcesses(),
        draft=options.draft_threads is None,
        whole_prompts=library.accelerated(),
        reason=reason,
    )


class OtherProcesses:
    """Cores kept busy by other processes, among those that this process may use. Niced ones
    count: Linux lets them yield only within their session or control group. `work`: total busy
    seconds of all cores since the start, None if the system does not report it."""

    def __init__(
        self,
        work: Callable[[], float | None] | None = None,
        own: Callable[[], float] = process_time,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self._work, self._own, self._clock = work or _busy_seconds, own, clock
        self._before = clock(), self._work(), own()
        self._found: float | None = None

    def __call__(self) -> float | None:
        """The mean since the last call, or over at least SPAN; None if unknown."""
        at, before, own_before = self._before
        span = self._clock() - at
        if span >= SPAN:
            work, own = self._work(), self._own()
            self._before, self._found = (at + span, work, own), None
            if before is not None and work is not None:
                self._found = max(0.0, (work - before - (own - own_before)) / span)
        return self._found


def _busy_seconds() -> float | None:
    try:
        cores = psutil.cpu_times(percpu=True)
    except (psutil.Error, OSError, RuntimeError, ValueError):
        return None
    with suppress(AttributeError, psutil.Error, OSError):  # macOS has no affinity
        cores = [cores[n] for n in psutil.Process().cpu_affinity() if n < len(cores)]
    fields = ("user", "nice", "system", "irq", "softirq", "steal")  # guests count as user
    # Sandboxes such as gVisor give zeros.
    return sum(float(getattr(core, name, 0.0)) for core in cores for name in fields) or None
