"""How much of the machine other processes use."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import psutil

SPAN = 0.25
"""Least seconds that a figure is about; systems count in hundredths, Windows in 64ths."""
IMPLAUSIBLE = 0.5
"""Counters that are off from the clock by so much are another machine's: some containers show their
host's, or zeros."""
BLINK = 0.04
"""Seconds of a quick look, enough to tell a busy core from none."""

Reading = tuple[float, float, float, float]
"""When, and seconds since the start: of all cores that are counted, those at work, our own."""


class OtherProcesses:
    """Cores that other processes keep busy.

    Only cores that this process may use count. Niced processes do not, what the host of a virtual
    machine takes away does.

    Args:
        read: gives a reading; None asks the system.
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
        """Over the last quarter of a second, or since it was asked last if that is longer ago; None
        where that is not known."""
        before = self._before
        if before is None or self._clock() - before[0] < SPAN:
            return self._found
        return self._since(before)

    def now(self) -> float | None:
        """The same over the next BLINK, which it takes."""
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
