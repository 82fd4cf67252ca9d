from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from localspec.llama import library

_PERFORMANCE = Path("/sys/devices/cpu_core/cpus")


def thread_counts() -> list[int]:
    """Counts worth choosing among: all physical cores, half, one, and the performance cores."""
    cores = library.default_threads()
    return sorted({1, max(1, cores // 2), min(cores, performance_cores() or cores), cores})


def performance_cores() -> int | None:
    """Their count; None if cores are alike, or unknown."""
    try:
        if sys.platform == "darwin":
            command = ["sysctl", "-n", "hw.perflevel0.physicalcpu"]
            return int(subprocess.check_output(command, timeout=5)) or None
        return len(_physical(_PERFORMANCE.read_text(encoding="ascii"))) or None
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def _physical(cpus: str) -> set[str]:
    """Cores of a list of processors like 0-15; siblings count once."""
    cores = set()
    for part in cpus.strip().split(","):
        first, _, last = part.partition("-")
        for number in range(int(first), int(last or first) + 1):
            siblings = f"/sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list"
            try:
                cores.add(Path(siblings).read_text(encoding="ascii").strip())
            except OSError:
                cores.add(str(number))
    return cores
