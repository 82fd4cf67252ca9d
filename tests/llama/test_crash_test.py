"""Unknown files are tried in a process of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from localspec import paths
from localspec.errors import Cancelled, ModelInvalid
from localspec.llama import child_process
from localspec.llama.crash_test import require_survivable
from tests.support.ggufs import aborting_llama, tiny_llama

pytestmark = pytest.mark.nightly


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "home"))


def known() -> list[str]:
    path = paths.cache_folder() / "crash_tests.json"
    return [*json.loads(path.read_text())] if path.exists() else []


def forbid_children(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object, **__: object) -> None:
        raise AssertionError("it is tried again")

    monkeypatch.setattr(subprocess, "Popen", none)


def test_a_file_that_makes_llama_cpp_abort(tmp_path: Path) -> None:
    path = aborting_llama(tmp_path / "bad.gguf")
    with pytest.raises(ModelInvalid) as caught:
        require_survivable(path)
    assert str(caught.value) == (
        "bad.gguf makes llama.cpp crash (SIGABRT), tried in a separate process. The file may be "
        "damaged: download it again, or choose another model."
    )
    # Another llama.cpp may get on with it, and so may the same one another day.
    assert known() == []


def test_a_good_file_is_tried_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tiny_llama(tmp_path / "good.gguf")
    require_survivable(path)
    assert len(known()) == 1
    forbid_children(monkeypatch)
    require_survivable(path)
    assert len(known()) == 1


def test_a_file_that_changed_is_tried_again(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "model.gguf")
    require_survivable(path)
    aborting_llama(path)
    with pytest.raises(ModelInvalid):
        require_survivable(path)


@pytest.mark.parametrize("name", [paths.EMBEDDED_TARGET, paths.EMBEDDED_DRAFT])
def test_the_embedded_pair_is_known(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    forbid_children(monkeypatch)
    require_survivable(paths.embedded(name))
    assert known() == []


def test_what_is_no_file_is_left_to_loading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forbid_children(monkeypatch)
    require_survivable(tmp_path / "none.gguf")
    assert known() == []


@pytest.mark.parametrize("data", [b"", b"GGUF", b"no model at all" * 100])
def test_a_file_that_is_refused_in_order_is_left_to_loading(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "refused.gguf"
    path.write_bytes(data)
    require_survivable(path)
    assert known() == []


def test_it_can_be_cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That the child then ends is tested in test_child_process."""
    waits = [sys.executable, "-c", "import threading; threading.Event().wait()"]
    monkeypatch.setattr(child_process, "command", lambda *_: waits)
    asked = iter([False, False, True])
    with pytest.raises(Cancelled):
        require_survivable(tiny_llama(tmp_path / "model.gguf"), cancelled=lambda: next(asked))
    assert known() == []


@pytest.mark.parametrize("data", [b"\xff", b'[["a"]]'])
def test_a_broken_memory_is_no_memory(data: bytes, tmp_path: Path) -> None:
    store = paths.cache_folder() / "crash_tests.json"
    store.parent.mkdir(parents=True)
    store.write_bytes(data)
    require_survivable(tiny_llama(tmp_path / "model.gguf"))
    assert len(known()) == 1


def test_nothing_is_remembered_where_nothing_can_be_written(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.write_text("a file where the folder should be")
    require_survivable(tiny_llama(tmp_path / "model.gguf"))
    assert home.read_text() == "a file where the folder should be"
