"""Standard streams that are closed, full, broken or a terminal."""

import os
from pathlib import Path
from subprocess import PIPE, Popen

import pytest

from tests.cli.process import LOCALSPEC, finished, line, patched, running, with_closed
from tests.cli.test_interrupts import ENDLESS
from tests.tui.terminals import Terminal, chat

pytestmark = pytest.mark.nightly

STORY = ("run", "-n", "12", "--temp", "0", "Tell me a story.")


def test_nothing_but_text_when_piped() -> None:
    result = finished(*STORY, "--stats")
    assert result.code == 0
    assert not {"\x1b", "\r"} & {*result.out, *result.err}
    assert result.out.count("\n") == 1


def test_a_closed_standard_output() -> None:
    finished(*STORY, command=with_closed(">&-")).refused(
        "Standard output is closed. Redirect it to a file.", code=1
    )


@pytest.mark.parametrize("arguments", [STORY, (*STORY, "--json"), (*STORY, "--jsonl"), ("--help",)])
def test_a_full_disk(arguments: tuple[str, ...]) -> None:
    with open("/dev/full", "wb") as full:
        result = finished(*arguments, stdout=full)
    result.refused("No space left on device (ENOSPC)", code=1)


@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full"])
def test_standard_error_gone(redirection: str) -> None:
    told, untold = finished(*STORY), finished(*STORY, command=with_closed(redirection))
    assert (untold.code, untold.out) == (0, told.out)
    failing = finished("run", "-m", "none.gguf", "hi", command=with_closed(redirection))
    assert failing.code == 3


def test_all_streams_closed() -> None:
    assert finished(*STORY, command=with_closed("<&- >&- 2>&-")).code == 1
    alone = finished(*STORY, command=with_closed("<&- 2>&-"))
    assert (alone.code, alone.out) == (0, finished(*STORY).out)


def test_a_pipe_that_does_not_wait() -> None:
    """As some programs leave those of their children."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    command = [*LOCALSPEC, *STORY[:-1]]
    with Popen(command, stdin=reading, stdout=PIPE, stderr=PIPE, text=True) as process:
        assert "reading standard input" in line(process.stderr)
        os.write(writing, STORY[-1].encode())
        os.close(writing)
        assert process.communicate()[0] == finished(*STORY).out
    os.close(reading)


@pytest.mark.parametrize("quiet", [(), ("-q",)])
def test_a_reader_that_goes_away(long_model: Path, quiet: tuple[str, ...]) -> None:
    arguments = ("run", "-m", str(long_model), "-c", "65536", *ENDLESS, *quiet, "hi")
    with running(*arguments) as process:
        assert process.stdout is not None
        assert process.stdout.read(10)
        process.stdout.close()
        assert process.wait() == 141
        said = process.stderr.read() if process.stderr is not None else ""
    *notices, last = said.splitlines() or [""]
    assert all(notice.startswith("localspec: note: ") for notice in notices)
    told = "localspec: Standard output was closed (broken pipe), so the answer stops here."
    assert last == ("" if quiet else told)
    assert "Traceback" not in said
    assert "Exception ignored" not in said


@pytest.mark.parametrize(
    "arguments",
    [
        *("--help", "run --help", "--version", "models", "models --json", "list", "show demo"),
        *("show demo --template", "doctor --paths", "doctor -h"),
    ],
)
def test_nothing_is_said_over_a_reader_that_has_enough(arguments: str) -> None:
    """It would be said on the terminal where `| head` shows the beginning."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as pipe:
        result = finished(*arguments.split(), stdout=pipe)
    assert (result.code, result.err) == (141, "")


def test_on_a_terminal_the_figures_are_set_apart(tmp_path: Path) -> None:
    screen = Terminal((*LOCALSPEC, *STORY), home=tmp_path).printed()
    answer, figures = screen.rstrip().rsplit("\r\n", 1)
    assert answer.endswith(finished(*STORY).out.rstrip("\n"))
    assert figures.startswith("\x1b[2m12 tokens · ")
    assert figures.endswith("\x1b[0m")


SLOW = """
import localspec
from localspec.cli import output

def slow(*arguments, load=localspec.load, progress, **options):
    for percent in (10, 50):
        progress(percent / 100)
    return load(*arguments, **options)

output._QUIET_SECONDS = output._REDRAW_SECONDS = 0
localspec.load = slow
"""


def test_progress_is_shown_on_a_terminal_and_erased(tmp_path: Path) -> None:
    command = (*patched(SLOW), "run", "-n", "1", "--temp", "0", "hi")
    screen = Terminal(command, home=tmp_path).printed()
    shown = screen.index("\r\x1b[Kloading the model: 50%")
    erased = screen.rindex("\r\x1b[K")
    assert erased > shown
    assert "reading the prompt: 100%" in screen[shown:erased]
    assert "1 token" in screen[erased:]


@pytest.mark.parametrize("log", ["", " 2>&1 | cat"])
def test_a_wait_for_standard_input_is_shown(tmp_path: Path, log: str) -> None:
    command = ("sh", "-c", f'cat | "$@"{log}', "sh", *LOCALSPEC, "run", "-n", "1", "Go on.")
    with chat(command=command, home=tmp_path) as terminal:
        terminal.until("reading standard input until it ends; < /dev/null skips it")
        terminal.type("\x04")
        terminal.until("1 token")
        assert ("reading" in terminal.text) == bool(log)


def test_a_model_cannot_steer_the_terminal(tmp_path: Path) -> None:
    grammar = 'root ::= "a\\x1b[31mred\\x07b\\u202e"'
    command = (*LOCALSPEC, "run", "-q", "-n", "40", "--grammar", grammar, "hi")
    said = Terminal(command, home=tmp_path).printed()
    assert "a\ufffd[31mred\ufffdb\ufffd" in said
    assert not {"\x1b", "\x07", "\u202e"} & {*said}
