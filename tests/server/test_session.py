"""State that is saved in files: `serve --session FILE`, and slots that clients save."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from localspec.sessions.session_file import SessionFile
from tests.cli.process import finished
from tests.server.process import PATIENCE, Running, serving
from tests.support.asking import assistant, user

pytestmark = pytest.mark.nightly

STORY = [user("Tell me a story about a fox and a bear. " * 20)]
OPTIONS = ("-c", "1024", "-t", "1", "--temp", "0", "--drafter", "none")


def chat(server: Running, messages: list[dict[str, str]]) -> Any:
    return server.post("/v1/chat/completions", {"messages": messages, "max_tokens": 12}).json


@contextmanager
def until_stopped(folder: Path, *options: str, **variables: Any) -> Iterator[Running]:
    """A server that is stopped in order, and saves its session."""
    with serving(folder, *options, **variables) as server:
        yield server
        server.process.terminate()
        assert server.process.wait(PATIENCE) == 0, server.log.read_text()


def test_session_continues_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "fox.session"
    options = (*OPTIONS, "--session", str(path))
    with until_stopped(tmp_path, *options) as server:
        first = chat(server, STORY)
        assert first["timings"]["cache_n"] == 0
    answer = assistant(first["choices"][0]["message"]["content"])
    assert SessionFile(path).facts["conversation"] == [*STORY, answer], "for run and chat as well"
    more = [*STORY, answer, user("And then?")]
    with until_stopped(tmp_path, *options) as server:
        again = chat(server, more)["timings"]
        assert again["cache_n"] >= first["timings"]["prompt_n"] - 1
        assert again["prompt_n"] < 40


def test_unused_session_file_is_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "fox.session"
    options = (*OPTIONS, "--session", str(path))
    with until_stopped(tmp_path, *options) as server:
        raw = server.post("/v1/completions", {"prompt": "Once upon", "max_tokens": 4}).json
    before = path.read_bytes()
    kept = SessionFile(path).facts["conversation"]
    assert kept == "Once upon" + raw["choices"][0]["text"]
    with until_stopped(tmp_path, *options):
        pass
    assert path.read_bytes() == before


def test_unsaved_session_is_an_error(tmp_path: Path) -> None:
    (folder := tmp_path / "kept").mkdir()
    with serving(tmp_path, *OPTIONS, "-q", "--session", str(folder / "fox")) as server:
        chat(server, STORY)
        folder.rmdir()
        folder.touch()
        server.process.terminate()
        assert server.process.wait(PATIENCE) == 1
    assert f"The session in {folder}/fox cannot be read: " in server.log.read_text()


def test_foreign_file_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "notes.md"
    path.write_text("# notes, a line long enough to be read as something\n")
    done = finished("serve", "--port", "0", "--session", str(path))
    assert done.code == 1
    assert "is not a session of localspec" in " ".join(done.err.split())
    assert path.read_text().startswith("# notes")


FRANCE = {"prompt": "What is the capital of France?", "n_predict": 6, "temperature": 0}
GERMANY = {**FRANCE, "prompt": "What is the capital of Germany?"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("slots")


@pytest.fixture(scope="module")
def slot_server(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Iterator[Running]:
    options = ("-c", "256", "-t", "1", "--slot-save-path", str(folder))
    with serving(tmp_path_factory.mktemp("slot_server"), *options) as running:
        yield running


def tokens_read(server: Running, body: dict[str, Any]) -> int:
    return int(server.post("/completion", body).json["timings"]["prompt_n"])


def test_slot_save_and_restore(slot_server: Running, folder: Path) -> None:
    slot_server.post("/slots/0?action=erase", {})
    whole = tokens_read(slot_server, FRANCE)
    saved = slot_server.post("/slots/0?action=save", {"filename": "france.bin"}).json
    assert saved["n_saved"] == whole + 6 - 1
    assert saved["n_written"] == (folder / "france.bin").stat().st_size
    rest = tokens_read(slot_server, GERMANY)
    assert 1 < rest < whole
    assert tokens_read(slot_server, GERMANY) == 1
    restored = slot_server.post("/slots/0?action=restore", {"filename": "france.bin"}).json
    assert (restored["n_restored"], restored["n_read"]) == (saved["n_saved"], saved["n_written"])
    assert tokens_read(slot_server, GERMANY) == rest
    slot_server.post("/slots/0?action=restore", {"filename": "france.bin"})
    assert tokens_read(slot_server, FRANCE) == 1
    (folder / "cut.bin").write_bytes(
        (folder / "france.bin").read_bytes()[: saved["n_written"] // 2]
    )
    slot_server.post("/slots/0?action=restore", {"filename": "france.bin"})
    error = slot_server.post("/slots/0?action=restore", {"filename": "cut.bin"}).error(400)
    assert error.startswith("cut.bin cannot be restored: a part of cut.bin is missing")
    assert tokens_read(slot_server, FRANCE) == 1, "the earlier state is kept"


def test_slot_erase(slot_server: Running) -> None:
    slot_server.post("/slots/0?action=erase", {})
    whole = tokens_read(slot_server, FRANCE)
    assert tokens_read(slot_server, FRANCE) == 1
    erased = slot_server.request("POST", "/slots/0?action=erase").json  # without a body
    assert erased["n_erased"] == whole + 6 - 1
    assert tokens_read(slot_server, FRANCE) == whole


@pytest.mark.parametrize(
    ("path", "name", "status"),
    [
        *(("/slots/0?action=restore", name, 400) for name in ("nothing.bin", "é" * 200)),
        *(("/slots/0?action=save", name, 400) for name in ("", "../out.bin", ".hidden", "a\nb")),
        *(("/slots/1?action=save", "a.bin", 400), ("/slots/0?action=dance", "a.bin", 400)),
        *(("/slots/0", "a.bin", 400), ("/slots/x?action=save", "a.bin", 404)),
    ],
)
def test_invalid_slot_requests(
    slot_server: Running, folder: Path, path: str, name: str, status: int
) -> None:
    before = sorted(folder.parent.rglob("*.bin"))
    reply = slot_server.post(path, {"filename": name})
    assert reply.status == status
    assert ". " in reply.json["error"]["message"]  # what to do about it
    assert sorted(folder.parent.rglob("*.bin")) == before


def test_foreign_file_is_kept(slot_server: Running, folder: Path) -> None:
    notes = folder / "notes.txt"
    notes.write_text("Milk, bread.")
    tokens_read(slot_server, FRANCE)
    for action in ("save", "restore"):
        reply = slot_server.post(f"/slots/0?action={action}", {"filename": "notes.txt"})
        assert reply.status == 400
    assert notes.read_text() == "Milk, bread."
    assert tokens_read(slot_server, FRANCE) == 1  # the slot is as it was


def test_slot_save_needs_a_folder(server: Running) -> None:
    error = server.post("/slots/0?action=save", {"filename": "a.bin"}).error(501)
    assert "--slot-save-path" in error


def test_parallel_slots_can_be_erased_but_not_saved(tmp_path: Path) -> None:
    options = ("-c", "256", "-t", "1", "--parallel", "2", "--slot-save-path", str(tmp_path))
    with serving(tmp_path, *options) as server:
        whole = tokens_read(server, FRANCE)
        assert tokens_read(server, FRANCE) == 1
        assert server.post("/slots/1?action=erase", {}).json["n_erased"] >= whole
        assert tokens_read(server, FRANCE) == whole
        error = server.post("/slots/0?action=save", {"filename": "a.bin"}).error()
        assert "Leave out --parallel (parallel=1)" in error


def test_conversations_take_turns_without_another_prefill(tmp_path: Path) -> None:
    texts = [f"The {who} walked over the hill. " * 40 for who in ("fox", "bear")]
    with serving(tmp_path, *OPTIONS) as server:  # calibration would clear the caches
        read = [tokens_read(server, {**FRANCE, "prompt": text}) for text in texts * 2]
    assert [tokens == 1 for tokens in read] == [False, False, True, True], read


def test_prompt_cache_survives_a_restart(tmp_path: Path) -> None:
    options = ("-c", "1024", "-t", "1", "--prompt-cache", "50MB")
    long = {**FRANCE, "prompt": "The fox and the hen walked over the hill. " * 40}
    for first in (True, False):
        with until_stopped(tmp_path, *options, LOCALSPEC_HOME=str(tmp_path / "home")) as server:
            again = tokens_read(server, long)
            assert again > 300 if first else again == 1
