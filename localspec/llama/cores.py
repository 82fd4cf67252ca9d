"""The cores that passes may use: by processor, affinity and control group."""

import ctypes
import sys
from collections.abc import Iterable
from pathlib import Path

import psutil

from localspec import cgroups

SLOW = 0.6  # of the fastest core's capacity: every thread of a pass waits for the slowest


def default_threads() -> int:
    """Threads for passes: one per physical core that this process may use, on processors with
    fast and slow cores one per fast core, and no more than a container's share of time allows."""
    cores = psutil.cpu_count(logical=False) or psutil.cpu_count() or 1
    if sys.platform == "darwin":
        return _fast_apple_cores() or cores
    allowed = psutil.Process().cpu_affinity()
    cores = fast_cores(allowed) or min(cores, len(allowed))
    return min(cores, cgroups.time_limit() or cores)


def fast_cores(allowed: Iterable[int], root: Path = cgroups.ROOT) -> int:
    """The fast physical cores among logical processors; 0 if the system does not tell them."""
    cpus = {number: root / f"sys/devices/system/cpu/cpu{number}" for number in allowed}
    fast = _numbers(cgroups.read_text(root / "sys/devices/cpu_core/cpus")) & cpus.keys()  # Intel
    capacities = {
        number: int(cgroups.read_text(cpu / "cpu_capacity") or 0) for number, cpu in cpus.items()
    }
    least = SLOW * max(capacities.values(), default=0)
    used = fast or {number for number, capacity in capacities.items() if capacity >= least}
    return len(
        {cgroups.read_text(cpus[number] / "topology/thread_siblings_list") for number in used}
        - {""}
    )


def _numbers(ranges: str) -> set[int]:
    """The numbers of a list such as "0-7,16"."""
    bounds = [part.partition("-") for part in ranges.split(",") if part]
    return {n for first, _, last in bounds for n in range(int(first), int(last or first) + 1)}


def _fast_apple_cores() -> int:
    """0 on Intel's processors."""
    found = ctypes.c_int(0)
    size = ctypes.c_size_t(ctypes.sizeof(found))
    name = b"hw.perflevel0.physicalcpu"
    ctypes.CDLL(None).sysctlbyname(name, ctypes.byref(found), ctypes.byref(size), None, 0)
    return found.value
