"""Counts of threads worth choosing among on this machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from localspec.llama import library

_PERFORMANCE = Path("/sys/devices/cpu_core/cpus")


def thread_counts() -> list[int]:
    """All physical cores that this process may use, half of them, one; and the performance cores
    alone where the system tells them apart."""
    cores = library.default_threads()
    counts = {cores, max(1, cores // 2), 1}
    fast = performance_cores()
    if fast is not None and fast < cores:
        counts.add(fast)
    return sorted(counts)


def performance_cores() -> int | None:
    """How many there are beside slower ones; None where all are alike, or nobody tells."""
    try:
        if sys.platform == "darwin":
            told = subprocess.run(
                ["sysctl", "-n", "hw.perflevel0.physicalcpu"],
                capture_output=True,
                text=True,
                timeout=5,
                check=True,
            )
            return int(told.stdout) or None
        return _physical(_PERFORMANCE.read_text(encoding="ascii")) or None
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def _physical(cpus: str) -> int:
    """Cores among the processors of a list like 0-15: those that share one count once."""
    cores = set()
    for part in cpus.strip().split(","):
        first, _, last = part.partition("-")
        for number in range(int(first), int(last or first) + 1):
            topology = Path(f"/sys/devices/system/cpu/cpu{number}/topology")
            try:
                core = (topology / "thread_siblings_list").read_text(encoding="ascii").strip()
            except OSError:
                core = str(number)
            cores.add(core)
    return len(cores)
