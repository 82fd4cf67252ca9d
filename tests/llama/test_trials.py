"""Trials of unknown files and kernels in child processes."""

import json
import subprocess
import sys
from pathlib import Path
from time import sleep

import psutil
import pytest
from gguf import GGUFWriter

from localspec import ModelOptions, paths
from localspec.errors import Cancelled, ModelInvalid, NativeError
from localspec.llama import child_process, crash_test, kernels, library
from localspec.llama.context import Context
from localspec.llama.crash_test import require_survivable
from localspec.llama.model import Model
from tests.cli.process import run_python
from tests.support.ggufs import aborting_llama, tiny_llama
from tests.support.patches import fail_with

pytestmark = [pytest.mark.nightly, pytest.mark.usefixtures("here")]

HANGING = "import threading; threading.Event().wait()"
WITH_CHILD = """
import os, pathlib, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import threading; threading.Event().wait()"])
place = pathlib.Path(sys.argv[1])
place.with_suffix(".new").write_text(f"{os.getpid()} {child.pid}")
place.with_suffix(".new").rename(place)
child.wait()
"""


def replace_children(monkeypatch: pytest.MonkeyPatch, program: str) -> list[str]:
    """Have children run this program; returns the requested modules."""
    requested: list[str] = []

    def command(module: str, *arguments: str) -> list[str]:
        requested.append(module)
        return [sys.executable, "-c", program, *arguments]

    monkeypatch.setattr(child_process, "command", command)
    return requested


def running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_current_folder_is_not_imported(here: Path) -> None:
    (here / "platform.py").write_text("raise SystemExit(9)")
    assert child_process.run("platform", limit=60.0)[0] == 0


@pytest.mark.parametrize("program", [None, "", sys.executable.replace("python", "app")])
def test_programs_with_python_inside_do_not_start_themselves(
    monkeypatch: pytest.MonkeyPatch, program: str | None
) -> None:
    monkeypatch.setattr(sys, "executable", program)
    assert child_process.run("platform", limit=60.0)[0] == 0
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    with pytest.raises(OSError, match="is frozen"):
        child_process.run("platform", limit=60.0)


def test_processes_of_a_child_end_with_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    replace_children(monkeypatch, WITH_CHILD)
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


def test_weights_that_cannot_be_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = GGUFWriter.add_architecture
    monkeypatch.setattr(
        GGUFWriter, "add_architecture", lambda it: (it.add_custom_alignment(8), begin(it))
    )
    require_survivable(tiny_llama(tmp_path / "a.gguf"))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel's part is Linux's")
@pytest.mark.parametrize("stderr", ["", "import os; os.close(2)"], ids=["open", "closed"])
def test_amx_is_disabled_in_a_child_process(stderr: str) -> None:
    code = (
        f"from localspec.llama import ggml, kernels\n{stderr}\nwith kernels.disabled_amx(): pass\n"
        "assert ggml.cpu_weight_buffers() and 'AMX' not in ggml.cpu_weight_buffers()"
    )
    done = run_python(code)
    assert (done.code, done.err) == (0, ""), "output of ggml is suppressed"


def known() -> list[str]:
    path = paths.cache_folder() / "crash_tests.json"
    return [*json.loads(path.read_text())] if path.exists() else []


def forbid_children(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "Popen", fail_with(AssertionError("a second trial")))


def test_aborting_file_is_refused(tmp_path: Path) -> None:
    path = aborting_llama(tmp_path / "bad.gguf")
    with pytest.raises(ModelInvalid) as caught:
        require_survivable(path)
    assert str(caught.value) == (
        "bad.gguf makes llama.cpp crash (SIGABRT), tested in a separate process. The file may be "
        "damaged: download it again, or choose another model."
    )
    # Another version of llama.cpp may open it.
    assert known() == []


def test_valid_file_is_tried_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tiny_llama(tmp_path / "good.gguf")
    require_survivable(path)
    with monkeypatch.context() as patch:
        forbid_children(patch)
        require_survivable(path)
    assert len(known()) == 1
    aborting_llama(path)
    with pytest.raises(ModelInvalid):
        require_survivable(path)


@pytest.mark.parametrize("name", [paths.EMBEDDED_TARGET, paths.EMBEDDED_DRAFT])
def test_embedded_models_are_not_tried(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    forbid_children(monkeypatch)
    require_survivable(paths.embedded(name))
    assert known() == []


@pytest.mark.parametrize("data", [None, b"", b"GGUF", b"no model at all" * 100])
def test_refusals_are_left_to_loading(data: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "refused.gguf"
    if data is not None:
        path.write_bytes(data)
    require_survivable(path)
    assert known() == []


def test_trial_can_be_cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_children(monkeypatch, HANGING)
    requested = iter([False, False, True])
    with pytest.raises(Cancelled):
        require_survivable(tiny_llama(tmp_path / "model.gguf"), cancelled=lambda: next(requested))
    assert known() == []


def test_hanging_file_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(crash_test, "MIN_TIMEOUT", 0.2)
    path = tiny_llama(tmp_path / "slow.gguf")
    kernels.status()  # which starts children too
    requested = replace_children(monkeypatch, HANGING)
    for _ in range(2):
        with pytest.raises(
            ModelInvalid, match=r"slow.gguf makes llama.cpp hang.*download it again"
        ):
            require_survivable(path)
    assert requested == [crash_test.MODULE] * 2, "not stored, as the machine may be the cause"


def test_lack_of_memory_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels.status()  # which starts children too
    replace_children(monkeypatch, "import os; os.kill(os.getpid(), 9)")
    with pytest.raises(NativeError, match=r"large.gguf .* memory runs out. Close other programs"):
        require_survivable(tiny_llama(tmp_path / "large.gguf"))
    assert known() == []


def test_unwritable_home_is_tolerated(tmp_path: Path) -> None:
    home = paths.cache_folder().parent
    home.write_text("a file where the folder should be")
    require_survivable(tiny_llama(tmp_path / "model.gguf"))
    assert home.read_text() == "a file where the folder should be"


def test_cpu_only_model(draft_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "accelerated", lambda: True)
    options = ModelOptions(context=64)
    with Model(draft_path, options, cpu_only=True) as model:
        assert not model.on_device
        context = Context.open(model, options)
        assert context.extend([1, 2, 3]).shape == (1, model.vocabulary.size)
        context.close()
