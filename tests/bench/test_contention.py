"""Computing processes: they compute, and they are gone afterwards, however that comes."""

from __future__ import annotations

import subprocess
import sys

import psutil
import pytest

from localspec.bench.contention import Contention

pytestmark = pytest.mark.nightly


def gone(pids: list[int]) -> bool:
    processes = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    _, alive = psutil.wait_procs(processes, timeout=60)
    return not [p for p in alive if p.status() != psutil.STATUS_ZOMBIE]


def test_as_many_as_asked_for_compute_until_it_is_left() -> None:
    with Contention(2) as busy:
        pids = busy.pids
        assert len(set(pids)) == 2
        before = sum(psutil.Process(pid).cpu_times().user for pid in pids)
        while sum(psutil.Process(pid).cpu_times().user for pid in pids) <= before:
            pass  # ends only if they compute
        assert busy.lost == 0
    assert busy.pids == []
    assert gone(pids)


def test_they_end_where_we_are_killed() -> None:
    program = (
        "import time; from localspec.bench.contention import Contention\n"
        "with Contention(2) as busy: print(*busy.pids, flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    with parent, parent.stdout as said:
        pids = [int(word) for word in said.readline().split()]
        assert len(pids) == 2
        parent.kill()
    assert gone(pids)
