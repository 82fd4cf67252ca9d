"""Computing processes: they compute, and they are gone afterwards, however that comes."""

from __future__ import annotations

import subprocess
import sys

import psutil
import pytest

from localspec.bench import contention
from localspec.bench.contention import Contention
from localspec.errors import LocalspecError

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


def test_one_that_ended_by_itself_is_told() -> None:
    with Contention(2) as busy:
        psutil.Process(busy.pids[0]).kill()
        while busy.lost == 0:
            pass
        assert busy.lost == 1
        assert len(busy.pids) == 1


def test_one_that_cannot_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contention, "_PROGRAM", "raise SystemExit")
    with pytest.raises(LocalspecError, match=r"ended at once.*--contention"), Contention(1):
        pass
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(LocalspecError, match=r"No such file.*--contention"), Contention(1):
        pass
