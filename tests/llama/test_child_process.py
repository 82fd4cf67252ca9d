"""Child processes end when we say so, with all that they started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from time import sleep

import psutil
import pytest

from localspec.errors import Cancelled, ModelInvalid
from localspec.llama import child_process, crash_test, kernels
from tests.support.ggufs import tiny_llama

pytestmark = pytest.mark.nightly

WAITS = "import threading; threading.Event().wait()"
HAS_A_CHILD = """
import os, pathlib, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import threading; threading.Event().wait()"])
place = pathlib.Path(sys.argv[1])
place.with_suffix(".new").write_text(f"{os.getpid()} {child.pid}")
place.with_suffix(".new").rename(place)
child.wait()
"""


def runs(monkeypatch: pytest.MonkeyPatch, program: str) -> list[str]:
    """Children run this instead; returns the modules and trials that were asked for."""
    asked: list[str] = []

    def command(module: str, *arguments: str) -> list[str]:
        asked.append(arguments[0] if module == child_process.TRIAL else module)
        return [sys.executable, "-c", program, *arguments]

    monkeypatch.setattr(child_process, "command", command)
    return asked


def running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_exit_status(monkeypatch: pytest.MonkeyPatch) -> None:
    runs(monkeypatch, "import sys; sys.exit(int(sys.argv[1]))")
    assert child_process.run("any", "7", limit=60.0) == 7
    runs(monkeypatch, "import os; os.abort()")
    assert child_process.run("any", limit=60.0) == -6


def test_child_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    runs(monkeypatch, WAITS)
    with pytest.raises(TimeoutError):
        child_process.run("any", limit=0.2)


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="no process groups")
def test_what_a_child_started_goes_with_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    runs(monkeypatch, HAS_A_CHILD)
    place = tmp_path / "pids"
    with pytest.raises(Cancelled):
        child_process.run("any", str(place), limit=600.0, cancelled=place.exists)
    pids = [int(word) for word in place.read_text().split()]
    for _ in range(6000):  # a killed process takes a moment to end
        if not any(map(running, pids)):
            break
        sleep(0.01)
    assert len(pids) == 2
    assert not any(map(running, pids))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel's part is Linux's")
def test_ggml_is_refused_amx_in_a_process_of_its_own() -> None:
    code = (
        "from localspec.llama import ggml, kernels\n"
        "assert kernels.refused_amx(list) == bool(ggml.cpu_weight_buffers())\n"
        "assert 'AMX' not in ggml.cpu_weight_buffers()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "", "what ggml prints is kept from the user"


def test_file_that_makes_llama_cpp_hang_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(crash_test, "LEAST_LIMIT", 0.2)
    path = tiny_llama(tmp_path / "slow.gguf")
    kernels.status()  # whose own children are asked for before
    asked = runs(monkeypatch, WAITS)
    for _ in range(2):
        with pytest.raises(
            ModelInvalid, match=r"slow.gguf makes llama.cpp hang.*download it again"
        ):
            crash_test.require_survivable(path)
    assert asked == ["file"] * 2, "it may be the machine: tried again"
