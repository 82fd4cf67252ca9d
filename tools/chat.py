"""What the terminal chat costs the model, and how smooth it stays.

    python -m tools.chat [--quick] [--scale NAME] [--rounds N]

1. tokens/s of the chat in a pseudo-terminal ÷ those of `localspec run`, the same prompt, greedy,
   interleaved; plain, with the n-gram and with the planner.
2. First paint: from starting the program to the first screen, before any model is loaded.
3. A history of 10,000 conversations: to search as one types. A conversation of 5,000 messages in
   it: to show it, to scroll a page, to jump to its beginning. From the key until a terminal shows
   what it shows in the end.

Run it on a quiet machine: 1 compares speeds, and one busy process more changes both.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from select import select
from time import perf_counter, sleep

import pexpect
import pyte

import localspec

PROMPT = "Tell me a long story about a fox, a hen and an old red barn."
SIZE = (40, 120)
"""Rows and columns."""
WAIT = 0.4
"""Seconds that a key has to do its work."""


def main() -> None:
    """Run all parts and print their figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds, the embedded pair only")
    parser.add_argument("--scale", default="A", help="pair of realistic size; see localspec bench")
    parser.add_argument("--rounds", type=int, help="chats and runs of each kind; 9, quick 3")
    said = parser.parse_args()
    rounds = said.rounds or (3 if said.quick else 9)
    print(
        f"localspec {localspec.__version__}, {platform.processor() or platform.machine()}, "
        f"{os.cpu_count()} cores, Python {platform.python_version()}, {SIZE[1]}×{SIZE[0]} cells"
    )
    with tempfile.TemporaryDirectory() as home:
        pairs: dict[str, list[str]] = {"embedded pair": []}
        if not said.quick:
            from localspec.bench.scale import scaled_pair

            target, draft = scaled_pair(said.scale)
            pairs[f"scale {said.scale}"] = ["-m", str(target), "-d", str(draft)]
        os.environ["LOCALSPEC_HOME"] = home
        for name, options in pairs.items():
            for drafter in ("none", "ngram", "auto"):
                against_run(name, [*options, "--drafter", drafter], drafter, rounds)
        first_paint(rounds)
        smooth()


def against_run(name: str, options: Sequence[str], drafter: str, rounds: int) -> None:
    """Speed in the chat ÷ speed on the command line."""
    arguments = [*options, "--temp", "0", "-n", "200", "-c", "1024"]
    _run(arguments)  # the costs of passes are measured, and the files are in memory, from here on
    chats, runs = [], []
    for number in range(rounds):
        # The machine's own speed drifts: each is the first one as often as the other.
        if number % 2:
            chats.append(_chat(arguments))
        runs.append(_run(arguments))
        if not number % 2:
            chats.append(_chat(arguments))
    ratios = [chat / run for chat, run in zip(chats, runs, strict=True)]
    _print(
        f"chat ÷ run, {name}, drafter {drafter}",
        ratios,
        "×",
        f"{statistics.median(chats):,.1f} against {statistics.median(runs):,.1f} tok/s",
    )


def _run(arguments: Sequence[str]) -> float:
    done = subprocess.run(
        [sys.executable, "-m", "localspec", "run", PROMPT, "--json", "-q", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
    )
    return float(json.loads(done.stdout)["stats"]["tokens_per_second"])


def _chat(arguments: Sequence[str]) -> float:
    """Ask once in a chat of its own; its speed is read from the history."""
    child = _start(["chat", *arguments])
    child.expect("shows the keys", timeout=60)
    _drain(child)
    sleep(2.0)  # the model is open, and nothing goes on
    child.send(f"{PROMPT}\r")
    speed = None
    while speed is None:
        sleep(0.5)
        speed = _speed()
    child.send("\x11")  # Ctrl+Q
    child.wait()
    return speed


def _start(arguments: Sequence[str], columns: int = SIZE[1]) -> pexpect.spawn[bytes]:
    return pexpect.spawn(
        sys.executable,
        ["-m", "localspec", *arguments],
        env={**os.environ, "TERM": "xterm-256color"},
        dimensions=(SIZE[0], columns),
        timeout=60,
    )


def _drain(child: pexpect.spawn[bytes]) -> None:
    """Take what the program draws, as a terminal would, at next to no cost."""

    def read() -> None:
        try:
            while os.read(child.child_fd, 1 << 16):
                pass
        except OSError:
            pass  # the program has ended

    threading.Thread(target=read, daemon=True).start()


def _speed() -> float | None:
    """Of the newest answer, once it is complete; it is taken out of the history then."""
    path = Path(os.environ["LOCALSPEC_HOME"]) / "data" / "history.db"
    with sqlite3.connect(path, timeout=10) as database:
        try:
            row = database.execute(
                "SELECT stats FROM messages WHERE role = 'assistant' AND state = 'complete'"
            ).fetchone()
        except sqlite3.OperationalError:
            return None  # it is still being set up
        if row is None:
            return None
        database.execute("DELETE FROM conversations")
        database.execute("DELETE FROM messages")
    return float(json.loads(row[0])["speed"])


def first_paint(rounds: int) -> None:
    """From starting the program to its first screen."""
    taken = []
    for _ in range(rounds):
        started = perf_counter()
        child = _start(["chat"])
        child.expect("shows the keys")
        taken.append(perf_counter() - started)
        child.close(force=True)
    _print("first paint", [1000 * seconds for seconds in taken], "ms")


def smooth() -> None:
    """Keys in a history of 10,000 conversations, and in one of 5,000 messages."""
    from localspec.chat.conversation import Conversation
    from localspec.history.history import ConversationHeader, History

    with closing(History()) as history:
        for number in range(10_000, 0, -1):
            conversation = Conversation()
            for question in range(2500 if number == 1 else 1):
                conversation.add("user", f"Fox {number + question}: where is number {number % 97}?")
                conversation.add("assistant", _ANSWER.format(number=number))
            history.put(
                conversation.id,
                header=ConversationHeader.of(conversation),
                messages=list(conversation.messages.values()),
            )
    child = _start(["chat"], columns=_Screen.COLUMNS)
    child.expect("shows the keys", timeout=60)
    screen = _Screen(child)
    screen.read(3.0)  # the model is open, and what was to be told was told
    screen.press("\x06")  # Ctrl+F
    _print(
        "10,000 conversations: a letter of a search", [screen.press(k) for k in "a fox 42"], "ms"
    )
    for key in ("\x1b", "\t", "\x1b[H"):  # clear the search, into the list, to its first one
        screen.press(key)
    _print("5,000 messages: show", [screen.press("\r")], "ms")
    screen.press("\x1b[Z")  # Shift+Tab, from the input to the conversation
    for name, key, times in (
        ("page up", "\x1b[5~", 40),
        ("home", "\x1b[H", 1),
        ("page down", "\x1b[6~", 40),
        ("end", "\x1b[F", 1),
        ("message up", "\x1b[A", 40),
    ):
        _print(f"5,000 messages: {name}", [screen.press(key) for _ in range(times)], "ms")
    child.close(force=True)


class _Screen:
    """What the program has drawn, and when."""

    COLUMNS = 160

    def __init__(self, child: pexpect.spawn[bytes]) -> None:
        self._file = child.child_fd
        self._screen = pyte.Screen(self.COLUMNS, SIZE[0])
        self._stream = pyte.ByteStream(self._screen)

    def read(self, seconds: float) -> list[tuple[float, bytes]]:
        """Take in what comes for so long: when, and what."""
        found = []
        end = perf_counter() + seconds
        while (left := end - perf_counter()) > 0:
            if select([self._file], [], [], left)[0]:
                found.append((perf_counter(), os.read(self._file, 1 << 16)))
        return found

    def press(self, key: str) -> float:
        """Milliseconds from a key until the screen shows what it shows in the end."""
        started = perf_counter()
        os.write(self._file, key.encode())
        shown = []
        for when, drawn in self.read(WAIT):
            self._stream.feed(drawn)
            shown.append((when, self._screen.display))
        first = next((when for when, display in shown if display == shown[-1][1]), started)
        if not shown or first == started:
            raise AssertionError(f"nothing is drawn for {key!r}")
        return 1000 * (first - started)


def _print(name: str, values: Sequence[float], unit: str, more: str = "") -> None:
    low, high = min(values), max(values)
    if len(values) >= 3:
        low, _, high = statistics.quantiles(values, n=4)
    text = f"{name:<50} {statistics.median(values):>8.3f} {unit}  ({low:.3f} – {high:.3f})"
    print(f"{text}  {more}".rstrip(), flush=True)


_ANSWER = """\
The fox number {number} goes through the **wooden gate** and says:

```python
def fox(n: int) -> str:
    return "fox " * n
```

- It sleeps until noon.
- It looks for the hen, in `the red barn`, and finds an old friend there who has waited for it.

Then it goes home, tired and glad, and tells its children all that it has seen on this day.
"""

if __name__ == "__main__":
    main()
