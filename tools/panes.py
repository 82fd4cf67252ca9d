"""What a new user sees: the commands of the README, and the first answer of a chat, as text.

    python -m tools.panes [dev/first_contact.md]

Each is run in a fresh home, on a terminal of 80×24 and of 120×40 cells, after a warm-up that
compiles and self-tests what is needed once. A pane is what the screen shows at the end.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from tests.tui.terminals import Terminal

SIZES = ((80, 24), (120, 40))
QUESTION = "Why is the sky blue?"
COMMANDS = {
    "README.md": (
        f'run --temp 0 -n 60 "{QUESTION}"',
        "list",
        "doctor --quick",
        "race -n 100",
        "--help",
    ),
    "docs/run.md": ("run --help", f'run --temp 0 -n 60 --stats "{QUESTION}"'),
    "docs/models.md": ("models qwen3-8b", "show smollm2", "run -m qwen3-8b Hello"),
    "docs/verify.md": ("verify --quick",),
}
PATIENCE = 600.0


def command(home: Path, line: str, size: tuple[int, int]) -> str:
    words = [sys.executable, "-m", "localspec", *shlex.split(line)]
    terminal = Terminal(
        words, home=home, columns=size[0], lines=size[1], PAGER="cat", LOCALSPEC_THREADS=""
    )
    with closing(terminal.child):
        terminal.child.timeout = PATIENCE
        terminal.ended()
        return terminal.text


def chat(home: Path, size: tuple[int, int]) -> Iterator[tuple[str, str]]:
    words = [sys.executable, "-m", "localspec", "chat", "--temp", "0", "-n", "80"]
    terminal = Terminal(words, home=home, columns=size[0], lines=size[1], LOCALSPEC_THREADS="")
    with closing(terminal.child):
        terminal.until("Write a message")
        yield "localspec chat", terminal.text
        terminal.type(f"{QUESTION}\r")
        terminal.until("cut off", timeout=PATIENCE)
        yield "a question", terminal.text
        terminal.type("\x1bOQ")  # F2
        terminal.until("Why this speed")
        yield "F2 behind it", terminal.text
        terminal.type("\x11")  # Ctrl+Q
        terminal.ended()


def pages(home: Path) -> Iterator[str]:
    command(home, f'run -n 8 "{QUESTION}"', SIZES[0])
    for page, lines in COMMANDS.items():
        yield f"## {page}"
        for line in lines:
            for size in SIZES:
                yield pane(f"localspec {line}", command(home, line, size), size)
    yield "## docs/chat.md"
    for size in SIZES:
        for what, text in chat(home, size):
            yield pane(what, text, size)


def pane(what: str, text: str, size: tuple[int, int]) -> str:
    return f"`{what}`, {size[0]}×{size[1]}:\n\n```text\n{text.rstrip()}\n```"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", nargs="?", default="dev/first_contact.md", type=Path)
    said = parser.parse_args()
    title = "# First contact\n\nWhat a new user sees, written by `python -m tools.panes`."
    with tempfile.TemporaryDirectory() as home:
        said.file.write_text("\n\n".join((title, *pages(Path(home)))) + "\n", "utf-8")


if __name__ == "__main__":
    main()
