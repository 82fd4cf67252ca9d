"""The load on this machine by other processes."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

import psutil

SPAN = 0.25  # least seconds that a figure is about; systems count in hundredths, Windows in 64ths


class OtherProcesses:
    """Cores kept busy by other processes, among those that this process may use. Niced processes
    do not count, as they yield. `work`: total busy seconds of all cores since the start, None if
    the system does not report it."""

    def __init__(
        self,
        work: Callable[[], float | None] | None = None,
        own: Callable[[], float] = time.process_time,
        clock: Callable[[], float] = time.perf_counter,
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
    fields = ("user", "system", "irq", "softirq", "steal")  # guests count as user
    return sum(float(getattr(core, name, 0.0)) for core in cores for name in fields)
