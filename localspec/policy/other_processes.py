"""How much of the machine other processes use, as the system tells it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import psutil

SPAN = 0.25
"""Seconds that a figure is about, at least; systems count in hundredths, Windows in 64ths."""
IMPLAUSIBLE = 0.5
"""Where all the time of the cores together is so far from what went by, the figures are of
another machine, or nobody's: some containers show their host's, or zeros."""
BLINK = 0.04
"""Seconds that tell whether others work now, in hundredths: enough to tell a core from none."""

Reading = tuple[float, float, float, float]
"""When, and seconds since the start: of all cores that are counted, those at work, our own."""


class OtherProcesses:
    """Cores that other processes keep busy.

    Only those cores count that this process may use. What gives way to us is not counted (niced
    processes), what the host of a virtual machine takes away is.

    Args:
        read: gives a reading; None asks the system.
        clock: tells the seconds that readings go by.
        sleep: lets seconds go by.
    """

    def __init__(
        self,
        read: Callable[[], Reading | None] | None = None,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._read = read or _Cores()
        self._clock, self._sleep = clock, sleep
        self._before = self._read()
        self._found: float | None = None

    def __call__(self) -> float | None:
        """Over the last quarter of a second, or since it was asked last if that is longer ago;
        None where the system does not tell, or tells what cannot be."""
        before = self._before
        if before is None or self._clock() - before[0] < SPAN:
            return self._found
        return self._since(before)

    def now(self) -> float | None:
        """Over the next blink, which it takes; None as above. What others did in a pause is not
        what they do when it is over."""
        before = self._before = self._read()
        if before is None:
            return None
        self._sleep(BLINK)
        return self._since(before)

    def _since(self, before: Reading) -> float | None:
        now = self._read()
        self._before = now
        self._found = None if now is None else _others(before, now)
        return self._found


def _others(before: Reading, now: Reading) -> float | None:
    span, whole, work, own = (b - a for a, b in zip(before, now, strict=True))
    if span <= 0.0 or whole <= 0.0 or work < 0.0:
        return None
    # A hundredth is counted here and not yet there.
    if work < own - max(0.1, IMPLAUSIBLE * own):
        return None
    cores = round(whole / span)
    if cores < 1 or abs(whole / span / cores - 1.0) > IMPLAUSIBLE:
        return None
    return max(0.0, (work - own) / span)


_AT_WORK = ("user", "system", "irq", "softirq", "steal")
_COUNTED_ELSEWHERE = ("guest", "guest_nice", "interrupt", "dpc")


class _Cores:
    """Reads psutil's counters of the cores that this process may use."""

    def __init__(self) -> None:
        self._numbers: Sequence[int] | None = None
        with suppress(AttributeError, psutil.Error, OSError):  # macOS has no affinity
            self._numbers = psutil.Process().cpu_affinity()

    def __call__(self) -> Reading | None:
        try:
            cores = psutil.cpu_times(percpu=True)
        except (psutil.Error, OSError, RuntimeError, ValueError):
            return None
        if self._numbers is not None:
            cores = [cores[n] for n in self._numbers if n < len(cores)]
        work = whole = 0.0
        for core in cores:
            fields = core._asdict()
            work += sum(fields.get(name, 0.0) for name in _AT_WORK)
            # Guests count as user, Windows' interrupts as system.
            whole += sum(
                seconds for name, seconds in fields.items() if name not in _COUNTED_ELSEWHERE
            )
        return time.perf_counter(), whole, work, time.process_time()
