"""State that is saved in files: `serve --session FILE`, and slots that clients save."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from localspec.sessions.session_file import SessionFile
from tests.cli.process import finished
from tests.server.process import PATIENCE, Running, serving

pytestmark = pytest.mark.nightly

STORY = [{"role": "user", "content": "Tell me a story about a fox and a bear. " * 20}]
OPTIONS = ("-c", "1024", "-t", "1", "--temp", "0", "--drafter", "none")


def said(server: Running, messages: list[dict[str, str]]) -> Any:
    return server.post("/v1/chat/completions", {"messages": messages, "max_tokens": 12}).json


def end(server: Running) -> None:
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(PATIENCE) == 0, server.log.read_text()


def test_it_continues_the_last_servers_conversation(tmp_path: Path) -> None:
    path = tmp_path / "fox.session"
    options = (*OPTIONS, "--session", str(path))
    with serving(tmp_path, *options) as server:
        first = said(server, STORY)
        assert first["timings"]["cache_n"] == 0
        end(server)
    answer = {"role": "assistant", "content": first["choices"][0]["message"]["content"]}
    assert SessionFile(path).facts["conversation"] == [*STORY, answer], "for run and chat as well"
    more = [*STORY, answer, {"role": "user", "content": "And then?"}]
    with serving(tmp_path, *options) as server:
        again = said(server, more)["timings"]
        assert again["cache_n"] >= first["timings"]["prompt_n"] - 1
        assert again["prompt_n"] < 40
        end(server)


def test_a_server_that_was_asked_nothing_leaves_the_file(tmp_path: Path) -> None:
    path = tmp_path / "fox.session"
    options = (*OPTIONS, "--session", str(path))
    with serving(tmp_path, *options) as server:
        raw = server.post("/v1/completions", {"prompt": "Once upon", "max_tokens": 4}).json
        end(server)
    before = path.read_bytes()
    kept = SessionFile(path).facts["conversation"]
    assert kept == "Once upon" + raw["choices"][0]["text"]
    with serving(tmp_path, *options) as server:
        end(server)
    assert path.read_bytes() == before


def test_something_else_is_not_replaced(tmp_path: Path) -> None:
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
def keeping(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Iterator[Running]:
    said = ("-c", "256", "-t", "1", "--slot-save-path", str(folder))
    with serving(tmp_path_factory.mktemp("keeping"), *said) as running:
        yield running


def read(server: Running, body: dict[str, Any]) -> int:
    return int(server.post("/completion", body).json["timings"]["prompt_n"])


def test_a_slot_is_saved_and_comes_back(keeping: Running, folder: Path) -> None:
    keeping.post("/slots/0?action=erase", {})
    whole = read(keeping, FRANCE)
    saved = keeping.post("/slots/0?action=save", {"filename": "france.bin"}).json
    assert saved["n_saved"] == whole + 6 - 1
    assert saved["n_written"] == (folder / "france.bin").stat().st_size
    rest = read(keeping, GERMANY)
    assert 1 < rest < whole
    assert read(keeping, GERMANY) == 1
    restored = keeping.post("/slots/0?action=restore", {"filename": "france.bin"}).json
    assert restored["n_restored"] == saved["n_saved"]
    assert restored["n_read"] == saved["n_written"]
    assert read(keeping, GERMANY) == rest
    keeping.post("/slots/0?action=restore", {"filename": "france.bin"})
    assert read(keeping, FRANCE) == 1


def test_an_erased_slot_reads_everything_again(keeping: Running) -> None:
    keeping.post("/slots/0?action=erase", {})
    whole = read(keeping, FRANCE)
    assert read(keeping, FRANCE) == 1
    erased = keeping.request("POST", "/slots/0?action=erase").json  # without a body
    assert erased["n_erased"] == whole + 6 - 1
    assert read(keeping, FRANCE) == whole


@pytest.mark.parametrize(
    ("path", "name", "status"),
    [
        ("/slots/0?action=restore", "nothing.bin", 400),
        ("/slots/0?action=save", "", 400),
        ("/slots/0?action=save", "../out.bin", 400),
        ("/slots/0?action=save", ".hidden", 400),
        ("/slots/0?action=save", "a\nb", 400),
        ("/slots/1?action=save", "a.bin", 400),
        ("/slots/0?action=dance", "a.bin", 400),
        ("/slots/0", "a.bin", 400),
        ("/slots/x?action=save", "a.bin", 404),
    ],
)
def test_what_cannot_be_meant(
    keeping: Running, folder: Path, path: str, name: str, status: int
) -> None:
    before = sorted(folder.parent.rglob("*.bin"))
    reply = keeping.post(path, {"filename": name})
    assert reply.status == status
    assert ". " in reply.json["error"]["message"]  # what to do about it
    assert sorted(folder.parent.rglob("*.bin")) == before


def test_a_file_that_is_none_of_ours_stays(keeping: Running, folder: Path) -> None:
    notes = folder / "notes.txt"
    notes.write_text("Milk, bread.")
    for action in ("save", "restore"):
        reply = keeping.post(f"/slots/0?action={action}", {"filename": "notes.txt"})
        assert reply.status == 400
    assert notes.read_text() == "Milk, bread."


def test_nothing_is_kept_where_nobody_said_where(server: Running) -> None:
    reply = server.post("/slots/0?action=save", {"filename": "a.bin"})
    assert reply.status == 501
    assert "--slot-save-path" in reply.json["error"]["message"]


def test_several_at_a_time_are_erased_and_not_saved(tmp_path: Path) -> None:
    said = ("-c", "256", "-t", "1", "--parallel", "2", "--slot-save-path", str(tmp_path))
    with serving(tmp_path, *said) as server:
        whole = read(server, FRANCE)
        assert read(server, FRANCE) == 1
        assert server.post("/slots/1?action=erase", {}).json["n_erased"] >= whole
        assert read(server, FRANCE) == whole
        reply = server.post("/slots/0?action=save", {"filename": "a.bin"})
        assert reply.status == 400
        assert "parallel=1" in reply.json["error"]["message"]


def test_conversations_survive_the_server(tmp_path: Path) -> None:
    said = ("-c", "1024", "-t", "1", "--prompt-cache", "50MB")
    long = {**FRANCE, "prompt": "The fox and the hen walked over the hill. " * 40}
    home = str(tmp_path / "home")
    for first in (True, False):
        with serving(tmp_path, *said, LOCALSPEC_HOME=home) as server:
            again = read(server, long)
            assert again > 300 if first else again == 1
            server.process.terminate()
            assert server.process.wait(60) == 0
