"""`localspec pull`, `rm` and `models` on the command line, and damaged files of the cache."""

import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from localspec import paths
from tests.cli.conftest import Cli
from tests.cli.process import LOCALSPEC, finished, line, running
from tests.hub.conftest import SIZE, Cached, complete_files, entry, partial_files
from tests.hub.server import Fault, Hub, Repo
from tests.tui.terminals import CTRL_Q, Terminal, chat

pytestmark = pytest.mark.nightly


@pytest.fixture
def hub_environment(hub: Hub, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables that direct other processes to the hub and the cache of the test."""
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.setenv("HF_HUB_CACHE", str(cache))
    monkeypatch.setenv("HF_TOKEN_PATH", os.devnull)


def test_pull_prints_the_path(cli: Cli, model: bytes, cache: Path) -> None:
    result = cli("pull", "user/repo")
    path = cache / f"models--user--repo/snapshots/{'d' * 40}/m-Q4_K_M.gguf"
    assert (result.code, result.out) == (0, f"{path}\n")
    assert result.err.splitlines()[-2:] == [
        "localspec: note: user/repo:Q4_K_M is here, 300.0 kB (300.0 kB downloaded).",
        "localspec: note: Run it with 'localspec run -m user/repo:Q4_K_M'.",
    ]
    assert "localspec: note: m-Q4_K_M.gguf: 0% of 300.0 kB" in result.err
    assert cli("pull", "-q", "user/repo").err == ""
    again = cli("pull", "user/repo").err
    assert "nothing to download; to get it again, first 'localspec rm user/repo:Q4_K_M'" in again


def test_commands_to_type_are_quoted(cli: Cli, hub: Hub, model: bytes) -> None:
    hub.repos["user/repo"].files = {"a b.gguf": model, "mmproj c&d.gguf": b"p"}
    notes = cli("pull", "user/repo").err
    assert "'localspec run -m 'user/repo:a b.gguf''" in notes
    assert "'localspec pull 'user/repo:mmproj c&d.gguf''" in notes


def test_pull_as_json(cli: Cli, model: bytes) -> None:
    found = cli("pull", "user/repo", "--json", "-d", "user/repo:Q8_0").json
    same = {"reference": "user/repo:Q4_K_M", "repository": "user/repo", "commit": "d" * 40}
    assert found["model"].items() >= (same | {"size": SIZE, "downloaded": SIZE}).items()
    assert Path(found["model"]["path"]).read_bytes() == model
    assert found["draft"]["reference"] == "user/repo:Q8_0"
    assert cli("pull", "user/repo", "--json").json["draft"] is None


@pytest.fixture
def catalogue(user_catalogue: Path) -> None:
    """A user catalogue with the entries small and big."""
    common = {"family": '"Test"', "parameters": "1_000_000"}
    small = entry(name='"small"', repo='"user/draft"', quant='"Q8_0"', **common)
    user_catalogue.write_text(
        small + entry(name='"big"', quant='"Q4_K_M"', drafts='["small"]', **common)
    )


@pytest.mark.usefixtures("catalogue")
@pytest.mark.parametrize("reference", ["big", "Big:Q4_K_M", "user/repo", "hf.co/User/Repo:Q4_K_M"])
def test_draft_from_the_catalogue(cli: Cli, hub: Hub, model: bytes, reference: str) -> None:
    hub.repos["user/draft"] = Repo({"d-Q8_0.gguf": b"draft", "d-Q4_K_M.gguf": b"not this one"})
    result = cli("pull", reference, "--draft", "auto")
    first, second = (Path(line) for line in result.out.splitlines())
    assert (first.read_bytes(), second.read_bytes()) == (model, b"draft")
    assert result.err.endswith("Q4_K_M -d user/draft:Q8_0'.\n")


@pytest.mark.usefixtures("catalogue")
def test_no_draft_in_the_catalogue(cli: Cli, hub: Hub, model: bytes) -> None:
    hub.repos["user/draft"] = hub.repos["user/unknown"] = hub.repos["user/repo"]
    for name, why in (
        ("small", "The catalogue has no draft for small, so none is downloaded."),
        ("user/unknown", "The catalogue does not know user/unknown, so no draft is downloaded."),
    ):
        result = cli("pull", name, "--draft", "auto")
        assert result.code == 0
        assert why in result.err


def test_invalid_draft_is_refused_before_the_download(cli: Cli, hub: Hub, model: bytes) -> None:
    cli("pull", "user/repo", "--draft", "no-such-name").refused("no file 'no-such-name'", code=3)
    assert hub.requests == []


def test_server_text_is_escaped(cli: Cli, hub: Hub, model: bytes) -> None:
    evil = "\x1b[2J\x9b\u202e"
    hub.api_faults = [Fault(status=418, body=json.dumps({"error": f"I {evil} am"}))]
    result = cli("pull", "user/repo", "-v")
    assert result.code == 1
    assert "I \ufffd[2J\ufffd\ufffd am" in result.err
    hub.repos["user/repo"] = Repo({f"x{evil}.gguf": b"x"})
    assert "as their names lead out" in cli("pull", "user/repo").sentence()
    hub.api_faults = [Fault(status=200, headers={"X-HF-Warning": "t; beware \x1b[2J"}, body="{}")]
    result = cli("pull", "user/repo", "-v")
    assert "beware" in result.err
    assert "\x1b" not in result.err


@pytest.mark.usefixtures("hub_environment")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_interrupted_pull(hub: Hub, model: bytes, cache: Path, number: signal.Signals) -> None:
    hub.faults = [Fault(cut=200_000, stall=True)]
    with running("pull", "user/repo", "--draft", "auto") as process:
        while sum(path.stat().st_size for path in partial_files(cache)) < 200_000:
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(number)
        out, err = process.communicate()
    told = "localspec: Interrupted. 'localspec pull user/repo --draft auto' continues it.\n"
    if number == signal.SIGKILL:
        assert process.returncode == -number
    else:
        assert (process.returncode, out, err.endswith(f"\n{told}")) == (130, "", True)
    assert complete_files(cache) == []
    done = finished("pull", "user/repo", "--json").json["model"]
    assert (done["downloaded"], hub.sent) == (SIZE - 200_000, SIZE)
    assert Path(done["path"]).read_bytes() == model


def test_errors_repeat_the_command(cli: Cli, hub: Hub, model: bytes) -> None:
    """`pull user/repo` alone would leave the draft out."""
    hub.api_faults = [Fault(status=500)] * 10
    again = "'localspec pull user/repo -d user/repo:Q8_0' continues a partial download."
    assert cli("pull", "user/repo", "-d", "user/repo:Q8_0").err.endswith(f"{again}\n")


@pytest.mark.usefixtures("hub_environment", "model")
def test_concurrent_pulls(hub: Hub, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_DOWNLOAD_TIMEOUT", "60")
    hub.faults = [Fault(cut=200_000, stall=True)]
    sent = threading.Event()
    hub.on_sent = lambda count: sent.set() if count >= 200_000 else None
    with running("pull", "user/repo", "--json") as first, chat(home=home) as terminal:
        assert sent.wait(60)
        with running("pull", "user/repo", "--json") as second:
            told = ""
            while "by another process; waiting." not in told:
                told = line(second.stderr)
                assert told
            terminal.until("Write a message")
            terminal.type("/model user/repo\r")
            terminal.until("200.0 kB of 300.0 kB")  # what the other one has
            terminal.type("\x1b")
            terminal.until("Enter sends")
            terminal.type(CTRL_Q)
            assert terminal.ended() == 0
            hub.released.set()  # the first one's connection breaks, and it goes on
            results = [process.communicate()[0] for process in (first, second)]
    assert [json.loads(out)["model"]["downloaded"] for out in results] == [SIZE, 0]
    assert hub.sent == SIZE


@pytest.mark.usefixtures("hub_environment")
def test_progress_bar_on_a_terminal(hub: Hub, model: bytes, home: Path) -> None:
    hub.repos["user/repo"].files["[bold]m-Q5_K_M.gguf"] = model
    command = (*LOCALSPEC, "pull", "user/repo:Q5_K_M")
    shown = Terminal(command, home=home, columns=120).printed()
    assert "[bold]m-Q5_K_M.gguf" in shown
    assert "300.0" in shown
    assert shown.rstrip().endswith("'localspec run -m user/repo:Q5_K_M'.")


def test_rm_needs_a_confirmation(cli: Cli, cached: Cached) -> None:
    snapshot = cached("user/repo", "m-Q4_K_M.gguf")
    cli("rm", "user/repo", stdin=b"y\n").refused(
        "Deleting needs a confirmation, and this is not a terminal. Add --yes to delete without"
    )
    assert cli("rm", "user/repo").err.endswith("Nothing was removed.\n")  # nobody types
    assert snapshot.exists()
    other = cached("user/other", "m-Q4_K_M.gguf")
    assert cli("rm", "user/repo", "user/none", "--yes").code == 3
    result = cli("rm", "user/repo", "user/other:Q4_K_M", "user/other", "--yes", "--json")
    removed = [str(folder / "m-Q4_K_M.gguf") for folder in (snapshot, other)]
    assert (result.json, result.err) == ({"removed": removed, "freed": 47}, "")
    assert not any(folder.exists() for folder in (snapshot, other))


@pytest.mark.usefixtures("hub_environment")
@pytest.mark.parametrize(("answer", "removed"), [("y\r", True), ("n\r", False), ("\r", False)])
def test_rm_on_a_terminal(cached: Cached, home: Path, answer: str, removed: bool) -> None:
    snapshot = cached("user/repo", "m-Q4_K_M.gguf", "README.md")
    command = (*LOCALSPEC, "rm", "user/repo:Q4_K_M")
    terminal = Terminal(command, home=home, columns=300)
    terminal.until("[y/N]")
    assert str(snapshot / "m-Q4_K_M.gguf") in terminal.text
    assert "Remove user/repo:Q4_K_M, 23 B?" in terminal.text
    terminal.type(answer)
    assert terminal.ended() == 0
    assert (snapshot / "m-Q4_K_M.gguf").exists() is not removed


@pytest.mark.usefixtures("catalogue")
def test_models_lists_and_filters(cli: Cli) -> None:
    lines = cli("models", "Test", "mit").out.splitlines()
    assert [" ".join(line.split()) for line in (lines[0], *lines[2:])] == [
        "NAME PARAMETERS ACTIVE DOWNLOAD LICENCE DRAFT HEADS",
        *("big 1 M MIT small", "small 1 M MIT"),
    ]
    (found,) = cli("models", "user/draft", "--json").json["models"]
    assert (found["name"], found["parameters"], found["drafts"]) == ("small", 1_000_000, [])
    nothing = cli("models", "no-such-word")
    assert (nothing.code, nothing.out) == (0, "")
    assert nothing.sentence() == "note: No model in the catalogue matches no-such-word."


AGAIN = "'localspec rm user/repo:m-Q8_0.gguf' and then 'localspec pull user/repo:m-Q8_0.gguf' get"


@pytest.mark.parametrize(
    ("at", "command", "cause"),
    [
        (0, ("run", "-m", "user/repo:Q8_0", "hi"), "m-Q8_0.gguf"),
        (0, ("run", "-d", "user/repo:Q8_0", "hi"), "m-Q8_0.gguf"),
        (0, ("doctor", "-m", "user/repo:Q8_0"), "m-Q8_0.gguf"),
        (-9, ("doctor", "-m", "user/repo:Q8_0"), "m-Q8_0.gguf is damaged: its SHA-256 is"),
        (-9, ("doctor", "-d", "user/repo:Q8_0"), "m-Q8_0.gguf is damaged: its SHA-256 is"),
    ],
)
def test_damaged_files_of_the_cache_are_named_with_the_commands_that_get_them_again(
    cli: Cli, cached: Cached, at: int, command: tuple[str, ...], cause: str
) -> None:
    content = bytearray(paths.embedded(paths.EMBEDDED_DRAFT).read_bytes())
    content[at] ^= 0xFF
    (cached("user/repo", "m-Q8_0.gguf") / "m-Q8_0.gguf").resolve().write_bytes(content)
    cli(*command).refused(cause, AGAIN, code=4)
