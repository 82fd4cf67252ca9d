"""`localspec serve --session FILE`: the conversation goes on after the server's end."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from localspec.sessions.session_file import SessionFile
from tests.server.process import PATIENCE, Running, serving
from tests.server.test_life import started

pytestmark = pytest.mark.nightly

STORY = [{"role": "user", "content": "Tell me a story about a fox and a bear. " * 20}]
OPTIONS = ("-c", "1024", "-t", "1", "--temp", "0", "--drafter", "none")


def said(server: Running, messages: list[dict[str, str]]) -> Any:
    return server.post("/v1/chat/completions", {"messages": messages, "max_tokens": 12}).json


def end(server: Running) -> None:
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(PATIENCE) == 0, server.log.read_text()


def test_it_goes_on_where_the_last_server_ended(tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--session", "a.session", "--parallel", "2"), "--session saves one conversation"),
        (("--session", "a.session", "-m", "demo", "-m", "demo"), "A session goes with one model."),
    ],
)
def test_what_cannot_be_kept_is_refused(arguments: tuple[str, ...], says: str) -> None:
    done = started("--port", "0", *arguments)
    assert done.returncode == 2
    assert says in " ".join(done.stderr.split())
    assert "eave " in done.stderr, "what to do"


def test_something_else_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "notes.md"
    path.write_text("# notes, a line long enough to be read as something\n")
    done = started("--port", "0", "--session", str(path))
    assert done.returncode == 1
    assert "is not a session of localspec" in " ".join(done.stderr.split())
    assert path.read_text().startswith("# notes")
