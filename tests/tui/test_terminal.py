"""`localspec chat` on a real terminal: how it is opened, left and suspended."""

import json
import signal
import termios
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import sleep

import pytest
from textual import constants

from localspec.tui.terminal import KeyParser
from tests.cli.process import patched
from tests.tui.terminals import (
    CTRL_Q,
    LOCALSPEC,
    PLAIN,
    SLOW_CHAT,
    TIMEOUT,
    Terminal,
    chat,
    complete_chat,
)

pytestmark = pytest.mark.nightly

ASK = "Tell me a story about a fox.\r"
CTRL_C, CTRL_Z = "\x03", "\x1a"


@pytest.fixture
def answering(tmp_path: Path) -> Iterator[Terminal]:
    """A chat in mid-answer; the answer takes some seconds."""
    with chat(*PLAIN, command=SLOW_CHAT, home=tmp_path) as terminal:
        terminal.until("no draft model")
        terminal.type(ASK)
        terminal.until("tok/s")
        yield terminal


def test_a_message_is_answered(tmp_path: Path) -> None:
    # Short: the beginning of a long one would be out of sight.
    size = {"COLUMNS": "40", "LINES": "8"}  # as some shells export; the terminal knows better
    with complete_chat("--temp", "0", "-n", "40", home=tmp_path, **size) as terminal:
        terminal.until("tale-13m-q8_0 + tale-3m-q8_0")
        assert terminal.display[-1].strip()
        assert terminal.alternate
        terminal.type(ASK)
        terminal.until(lambda: "■" in terminal.text and "tok/s" in terminal.text)
        assert ASK.strip() in terminal.words
        assert "Once upon a time" in terminal.words


def test_without_a_verb_it_is_the_chat(tmp_path: Path) -> None:
    with complete_chat(command=LOCALSPEC, home=tmp_path) as terminal:
        terminal.until("Write a message")  # keys before are lost with the terminal's old mode


def test_ctrl_c_stops_and_leaves_when_pressed_twice_more(answering: Terminal) -> None:
    answering.type(CTRL_C)
    answering.until("■ stopped")
    answering.type(CTRL_C)
    answering.until("Ctrl+C again quits")
    answering.type(CTRL_C)
    assert answering.ended() == 130
    assert answering.restored


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_in_mid_answer(answering: Terminal, number: signal.Signals) -> None:
    answering.kill(number)
    assert answering.ended() == 128 + number
    assert answering.restored


def test_a_signal_leaves_before_there_is_a_screen(tmp_path: Path) -> None:
    early = "import signal\nfrom localspec.cli import request\n"
    early += "request.read_opening = lambda _: signal.raise_signal(signal.SIGHUP)"
    with chat("chat", command=patched(early), home=tmp_path) as terminal:
        assert terminal.ended() == 128 + signal.SIGHUP


WRAPPER = ("sh", "-c", 'trap "" HUP; "$@"; exit $?', "sh")  # which alone gets SIGHUP


@pytest.mark.parametrize(("stopped", "wrapper"), [(False, WRAPPER), (False, ()), (True, ())])
def test_a_terminal_that_is_closed(tmp_path: Path, stopped: bool, wrapper: Sequence[str]) -> None:
    """No process is left without one, which would read it again and again."""
    command, unbuffered = (*wrapper, *LOCALSPEC, "chat"), "" if wrapper else "1"
    with chat(home=tmp_path, command=command, PYTHONUNBUFFERED=unbuffered) as terminal:
        terminal.until("tale-13m-q8_0 + tale-3m-q8_0")
        terminal.until("Write a message")
        if stopped:
            terminal.kill(signal.SIGSTOP)
        terminal.child.ptyproc.fileobj.close()
        sleep(0.05)
        terminal.kill(signal.SIGCONT)
        for _ in range(round(TIMEOUT / 0.05)):
            if not terminal.child.isalive():
                break
            sleep(0.05)
        assert terminal.child.exitstatus == 128 + signal.SIGHUP


def test_ctrl_z_and_fg(tmp_path: Path) -> None:
    shell = ("bash", "--norc", "--noprofile", "-i")
    with chat(command=shell, home=tmp_path, PS1="shell> ") as terminal:
        terminal.until("shell>")
        before = terminal.modes
        terminal.type(f"{' '.join(LOCALSPEC)} chat\r")
        terminal.until("tale-13m-q8_0 + tale-3m-q8_0")
        terminal.type(CTRL_Z)
        terminal.until(lambda: not terminal.alternate)
        terminal.until("Stopped")
        terminal.until(lambda: terminal.modes == before)  # the shell may still be at it
        assert terminal.cursor_shown
        terminal.screen.reset()  # the alternate screen begins empty
        terminal.type("fg\r")
        terminal.until(lambda: terminal.alternate)
        terminal.until("tale-13m-q8_0 + tale-3m-q8_0")
        terminal.until("^q Quit")
        # Reading begins anew behind it: Enter comes when the text has arrived.
        terminal.type(ASK.removesuffix("\r"))
        terminal.until("about a fox.")
        terminal.type("\r")
        terminal.until(lambda: "■" in terminal.text and "tok/s" in terminal.text)
        terminal.type(CTRL_Q)
        # The shell has its terminal back once it asks again.
        terminal.until(lambda: terminal.raw.rstrip().endswith(b"shell>"))
        assert not terminal.alternate
        terminal.type("echo left with $?\r")
        terminal.until("left with 0")


def test_a_stop_that_it_cannot_see(answering: Terminal) -> None:
    """As by `kill -STOP`, or a container that is paused."""
    for times in (2, 3, 4):
        answering.kill(signal.SIGSTOP)
        answering.kill(signal.SIGCONT)
        answering.until(lambda n=times: answering.raw.count(b"\x1b[?1049h") == n)  # type: ignore[misc]
    answering.type("\x1b")
    answering.until("■ stopped")
    answering.type(CTRL_Q)
    assert answering.ended() == 0
    assert answering.restored


def test_pasted_text_that_steers_the_terminal_or_is_no_utf_8(tmp_path: Path) -> None:
    with complete_chat(home=tmp_path) as terminal:
        terminal.until("Write a message")
        for part in ("\x1b[200~first \x1b[31mred\x1b[0m\r", "\x1b[1m\x11last\x1b[2", "01~ typed"):
            terminal.type(part)
        terminal.until("last typed")
        assert terminal.words.count("first red") == 1
        # As a terminal in Latin-1 sends them, and a pasted image.
        for data in (b"caf\xe9 ", b"\x1b[200~\x89PNG\r\n\x1a\n\xff\x00end\x1b[201~"):
            terminal.type(data)
        terminal.until("caf\ufffd")
        terminal.until(lambda: terminal.words.count("end") > 1)  # beside the key Send
        assert "You" not in terminal.words  # nothing was sent


def test_keys_before_the_first_paint(tmp_path: Path) -> None:
    """They go to the input, and not to the list's search."""
    with chat(home=tmp_path, columns=180) as terminal:
        terminal.type("typed early")
        terminal.until("▌ typed early")


def test_what_is_copied_goes_to_the_desktop_as_well(tmp_path: Path) -> None:
    program, copied = tmp_path / "xclip", tmp_path / "copied"
    program.write_text(f"#!/bin/sh\nexec cat > {copied}\n")
    program.chmod(0o755)
    here = {"PATH": f"{tmp_path}:/usr/bin:/bin", "DISPLAY": ":0", "TMUX": ""}
    with chat(home=tmp_path, **here) as terminal:
        terminal.until("Write a message")
        terminal.type("/copy conversation")
        terminal.until("/copy conversation")
        terminal.type("\r")
        terminal.until(lambda: copied.exists() and "# New conversation" in copied.read_text())


def test_keys_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ESCAPE_DELAY", 0.0)
    parser = KeyParser()
    pieces = ["a\x1b[", "A\x1b[1;2", "D\x1bO", "P\x1b[20", "0~x\x1b[2", "01~\x1b", "b\x1b[C"]
    pieces += ["\x1bOP" + 4096 * "ü", "b\u3000\u200d"]
    keys = [key for piece in pieces for key in [*parser.feed(piece), *parser.tick()]]
    found = [getattr(each, "key", "paste") for each in keys]
    first = ["a", "up", "shift+left", "f1", "paste", "escape", "b", "right", "f1", "paste"]
    assert found == [*first, "b", "paste"], "wide spaces and joiners are typed, too"
    monkeypatch.setattr(constants, "ESCAPE_DELAY", 9.0)
    soon = ["\x1b", "fox\x1bOK", "\x1b\r\x1bd\x1b]11;rgb:0/0\x07\x1b[?6c\x1b[9Xx", "\x1b", "\x1b[A"]
    keys = [key for piece in soon for key in [*parser.feed(piece), *parser.tick()]]
    typed = "escape f o x escape O K ctrl+j ctrl+delete x escape up".split()
    assert [getattr(key, "key", "paste") for key in keys] == typed, "reports are no text"


def test_signals_that_arrive_while_it_writes(answering: Terminal) -> None:
    for _ in range(10):
        answering.kill(signal.SIGCONT)
        answering.take(0.001)
    answering.until("■")
    answering.type(CTRL_Q)
    assert answering.ended() == 0


@pytest.mark.parametrize("where", ["/dev/null", "&-", "/dev/full"])
def test_errors_that_go_elsewhere(tmp_path: Path, where: str) -> None:
    elsewhere = ("sh", "-c", f'exec "$@" 2>{where}', "sh", *LOCALSPEC, "chat")
    with complete_chat(command=elsewhere, home=tmp_path) as terminal:
        terminal.until("Write a message")


@pytest.mark.parametrize("name", ["TERM", "TEXTUAL_DRIVER", "TEXTUAL_LOG", "TEXTUAL_COLOR_SYSTEM"])
def test_wrong_variables(tmp_path: Path, name: str) -> None:
    value, says = (
        ("dumb", "TERM=dumb") if name == "TERM" else ("/none/none", "The chat does not start")
    )
    with chat(home=tmp_path, **{name: value}) as terminal:
        assert terminal.ended() == 2
        assert says.encode() in terminal.raw
        assert name.encode() in terminal.raw
        assert b"\x1b" not in terminal.raw


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGABRT])
def test_a_sudden_end_leaves_the_terminal_in_order(answering: Terminal, number: int) -> None:
    answering.kill(number)
    answering.until_notice("localspec ended suddenly.")
    assert not answering.alternate
    assert answering.cursor_shown
    lflag, was = answering.modes[3], answering.before[3]
    assert lflag & (termios.ECHO | termios.ICANON) == was & (termios.ECHO | termios.ICANON)


HEAVY = ("llama_cpp", "numpy", "sqlite_utils", "sqlite3", "huggingface_hub", "jinja2")
UP_TO_THE_PAINT = """
import json, os, pathlib
from localspec.tui.app import ChatApp

def begin(app):
    pathlib.Path(os.environ["LOADED"]).write_text(json.dumps(sorted(sys.modules)))
    app.exit()

ChatApp._begin = begin
"""


@pytest.mark.parametrize("arguments", [(), ("-m", "some.gguf", "--ctx", "512", "--system", "Hi")])
def test_nothing_heavy_is_imported_before_the_first_paint(
    arguments: tuple[str, ...], tmp_path: Path
) -> None:
    loaded = tmp_path / "modules.json"
    command = (*patched(UP_TO_THE_PAINT), "chat", *arguments)
    # An option would do as well as this variable, which has the settings read.
    said = {"LOCALSPEC_THREADS": "", "LOADED": str(loaded)}
    with chat(command=command, home=tmp_path, **said) as terminal:
        terminal.until("Write a message")
        assert terminal.ended() == 0
    modules = set(json.loads(loaded.read_text()))
    assert "textual.app" in modules
    assert modules.isdisjoint(HEAVY), modules.intersection(HEAVY)
    assert "localspec.settings" not in modules
