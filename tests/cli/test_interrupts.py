"""Ctrl+C while the model loads, while it reads the prompt and while it answers."""

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from localspec import Engine
from localspec.cli import request
from localspec.errors import Cancelled
from localspec.sessions.session_file import SessionFile
from tests.cli.conftest import Cli
from tests.cli.process import event, finished, line, patched, running

pytestmark = pytest.mark.nightly

ENDLESS = ("--draft", "none", "--temp", "0", "-t", "1", "--logit-bias", "0=-inf")
"""Token 0 ends the text."""


def endless(model: Path) -> tuple[str, ...]:
    return ("run", "-m", str(model), "-c", "65536", *ENDLESS)


SIGNALS = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])


def interrupt() -> None:
    """Ctrl+C, as the system delivers it."""
    main_thread = threading.main_thread().ident
    assert main_thread is not None
    signal.pthread_kill(main_thread, signal.SIGINT)


def test_ctrl_c_while_loading(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """The object and the last event come all the same."""

    def endless(model: object, *, progress: Callable[[float], None], **_: object) -> Engine:
        interrupt()
        while True:
            progress(0.5)

    monkeypatch.setattr("localspec.load", endless)
    handled = (signal.SIGINT, signal.SIGTERM)
    before = [*map(signal.getsignal, handled)]
    cli("run", "hi").refused("Interrupted while the model was loading.", code=130)
    assert [*map(signal.getsignal, handled)] == before
    (end,) = cli("run", "--jsonl", "hi").events
    assert end["event"] == "end"
    for answer in (end, cli("run", "--json", "hi").json):
        assert (answer["text"], answer["finish_reason"]) == ("", "cancelled")
        assert answer["stats"]["generated_tokens"] == 0


def test_ctrl_c_before_loading(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(*_: object) -> None:
        interrupt()
        threading.Event().wait()  # until KeyboardInterrupt

    monkeypatch.setattr(request, "read_request", slow)
    result = cli("run", "--jsonl", "hi")
    assert result.code == 130
    assert result.sentence() == "Interrupted before the model was loaded."
    assert [event["event"] for event in result.events] == ["end"]


def test_ctrl_c_while_the_speed_up_is_measured(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(_engine: object, _options: object, progress: Callable[[float], None]) -> None:
        interrupt()
        with pytest.raises(Cancelled):
            progress(1.0)

    monkeypatch.setattr("localspec.cli.answer.measure_baseline", measure)
    assert cli("run", "-n", "2", "hi").code == 0


def test_ctrl_c_within_a_call_of_native_code_is_not_lost(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = ctypes.CFUNCTYPE(None)(interrupt)
    monkeypatch.setattr("localspec.retrieval.texts.texts_in", lambda *_: calls() or iter(["fox"]))
    cli("learn", str(tmp_path)).refused("Interrupted. Nothing was learned.", code=130)


@SIGNALS
def test_while_reading_the_prompt(long_model: Path, number: signal.Signals) -> None:
    prompt, command = "the fox and the hen " * 12_000, endless(long_model)
    with running(*command, "--jsonl", stdin=prompt) as p:
        assert event(p, "start")["prompt_tokens"] > 50_000
        p.send_signal(number)
        end = event(p, "end")
        assert (end["finish_reason"], end["text"]) == ("cancelled", "")
        assert end["stats"]["generated_tokens"] == 0
        assert p.wait() == 130


@SIGNALS
def test_while_answering(long_model: Path, number: signal.Signals) -> None:
    with running(*endless(long_model), "--jsonl", "hi") as process:
        first = event(process, "chunk")
        process.send_signal(number)
        end = event(process, "end")
        assert process.wait() == 130
    assert end["finish_reason"] == "cancelled"
    assert end["text"].startswith(first["text"])
    assert 0 < end["stats"]["generated_tokens"] < 60_000


def test_a_session_that_another_program_changed_is_kept(long_model: Path, tmp_path: Path) -> None:
    path = tmp_path / "fox.session"
    session = ("--session", str(path))
    with running(*endless(long_model), *session, "--jsonl", "hi") as process:
        event(process, "chunk")
        finished("run", "-n", "2", *session, "Once").succeeded()
        kept = path.read_bytes()
        process.send_signal(signal.SIGINT)
        (told,) = event(process, "end")["stats"]["notices"]
    assert f"Another program has changed the session in {path}." in told
    assert path.read_bytes() == kept
    (other,) = tmp_path.glob("fox-*.session")
    assert f"saved in {other}:" in told
    assert SessionFile(other).facts["conversation"].startswith("hi")


def test_what_there_is_stays_and_the_figures_say_interrupted(long_model: Path) -> None:
    with running(*endless(long_model), "hi") as process:
        assert process.stdout is not None
        begun = process.stdout.read(20)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
        assert process.returncode == 130
    assert (begun + out).endswith("\n")
    *_, figures = err.splitlines()
    assert figures.startswith("interrupted · ")
    assert " tok/s · " in figures
    assert "Traceback" not in err


STUBBORN = """
import threading
import localspec

def load(*_, progress, **__):
    print("loading", file=sys.stderr, flush=True)
    try:
        while True:
            progress(0.5)
    except KeyboardInterrupt:
        print("cancelled", file=sys.stderr, flush=True)
    threading.Event().wait()

localspec.load = load
"""


def test_a_second_ctrl_c_leaves_at_once() -> None:
    with running("run", "hi", command=patched(STUBBORN)) as process:
        assert line(process.stderr) == "loading\n"
        process.send_signal(signal.SIGINT)
        assert line(process.stderr) == "cancelled\n"
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130


EARLY = """
import os, signal, sys

class Interrupts:
    def find_spec(self, name, *_):
        if name == "{}":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupts())
from localspec.__main__ import main
sys.exit(main(["list"]))
"""


@pytest.mark.parametrize("name", ["logging", "typer", "localspec.cli.list", "localspec.hub.local"])
def test_before_a_command_has_begun(name: str) -> None:
    ended = finished(command=(sys.executable, "-c", EARLY.format(name)))
    assert (ended.code, ended.out, ended.err) == (130, "", "")


CATCHES = """
import os, signal

try:
    os.kill(os.getpid(), {})
    for _ in range(1000):
        pass
except BaseException:
    pass
"""


@SIGNALS
def test_while_a_package_is_imported_that_catches_all(
    tmp_path: Path, number: signal.Signals
) -> None:
    (tmp_path / "torch.py").write_text(CATCHES.format(int(number)))
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("Tell me a story.")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "LOCALSPEC_HOME": str(tmp_path)}
    ended = finished("distill", str(prompts), env=environment)
    assert (ended.code, ended.sentence()) == (130, "Interrupted. The same command continues.")


WAITING = """
import io, signal

class Waiting(io.TextIOWrapper):
    @property
    def buffer(self):
        print("waiting", file=sys.stderr, flush=True)
        signal.pause()

sys.stdin = Waiting(io.BytesIO())
"""


@SIGNALS
def test_while_waiting_for_standard_input(number: signal.Signals) -> None:
    with running("run", command=patched(WAITING)) as process:
        assert line(process.stderr) == "waiting\n"
        process.send_signal(number)
        _, err = process.communicate()
        assert process.returncode == 130
    assert err == "localspec: Interrupted while standard input was read.\n"
