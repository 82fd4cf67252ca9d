"""What the terminal chat costs the model, and how smooth it stays.

    python -m bench.chat [--quick] [--scale NAME] [--rounds N]

1. tokens/s of the chat in a pseudo-terminal ÷ those of `localspec run`, the same prompt, greedy,
   interleaved; plain, with the n-gram and with the planner.
2. First paint: from starting the program to the first screen, before any model is loaded.
3. A conversation of 5,000 messages: to show it, to scroll a page, to jump to its beginning.
4. A history of 10,000 conversations: to list them, to search as one types.

Run it on a quiet machine: 1 compares speeds, and one busy process more changes both.
"""

from __future__ import annotations

import argparse
import asyncio
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
from time import perf_counter, sleep

import pexpect

import localspec

PROMPT = "Tell me a long story about a fox, a hen and an old red barn."
SIZE = (40, 120)
"""Rows and columns."""


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
        asyncio.run(long_conversation())
        asyncio.run(long_history())


def against_run(name: str, options: Sequence[str], drafter: str, rounds: int) -> None:
    """Speed in the chat ÷ speed on the command line."""
    arguments = [*options, "--temp", "0", "-n", "200", "-c", "1024"]
    _run(arguments)  # the costs of passes are measured, and the files are in memory, from here on
    chats, runs = [], []
    for _ in range(rounds):
        runs.append(_run(arguments))
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
    child.send(f"{PROMPT}\r")
    speed = None
    while speed is None:
        sleep(0.5)
        speed = _speed()
    child.send("\x11")  # Ctrl+Q
    child.wait()
    return speed


def _start(arguments: Sequence[str]) -> pexpect.spawn[bytes]:
    return pexpect.spawn(
        sys.executable,
        ["-m", "localspec", *arguments],
        env={**os.environ, "TERM": "xterm-256color"},
        dimensions=SIZE,
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
        row = database.execute(
            "SELECT stats FROM messages WHERE role = 'assistant' AND state = 'complete'"
        ).fetchone()
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


async def long_conversation() -> None:
    """5,000 messages in the app, headless."""
    from localspec.chat.conversation import Conversation
    from localspec.tui.app import ChatApp

    conversation = Conversation()
    for number in range(2500):
        conversation.add("user", f"Question {number}: what does the fox do in the wood today?")
        conversation.add("assistant", _ANSWER.format(number=number))
    app = ChatApp(loader=_no_model)
    async with app.run_test(size=(SIZE[1], SIZE[0])) as pilot:
        await pilot.pause(0.5)
        started = perf_counter()
        app.show(conversation)
        await pilot.pause()
        _print("5,000 messages: show", [1000 * (perf_counter() - started)], "ms")
        app.transcript.focus()
        # `f9` does nothing: what is left is how long the pilot waits for the app to be idle.
        for key, times in (
            ("f9", 20),
            ("pageup", 40),
            ("home", 1),
            ("pagedown", 40),
            ("end", 1),
            ("up", 40),
        ):
            taken = []
            for _ in range(times):
                started = perf_counter()
                await pilot.press(key)
                await pilot.pause()
                taken.append(1000 * (perf_counter() - started))
            _print(f"5,000 messages: {key}", taken, "ms")


async def long_history() -> None:
    """10,000 conversations in the app, headless."""
    from localspec.chat.conversation import Conversation
    from localspec.chat.history import Header, History
    from localspec.tui.app import ChatApp

    with closing(History()) as history:
        for number in range(10_000):
            conversation = Conversation()
            conversation.add("user", f"Question {number}: where is fox number {number % 97}?")
            conversation.add("assistant", _ANSWER.format(number=number))
            history.put(
                conversation.id,
                header=Header.of(conversation),
                messages=list(conversation.messages.values()),
            )
    app = ChatApp(loader=_no_model)
    async with app.run_test(size=(160, SIZE[0])) as pilot:
        await pilot.pause(1.0)
        started = perf_counter()
        app.shelf.list()
        await app.workers.wait_for_complete()
        await pilot.pause()
        _print("10,000 conversations: list", [1000 * (perf_counter() - started)], "ms")
        app.action_search()
        taken = []
        for _ in range(13):
            started = perf_counter()
            await pilot.press("f9")
            await app.workers.wait_for_complete()
            await pilot.pause()
            taken.append(1000 * (perf_counter() - started))
        _print("10,000 conversations: f9, which does nothing", taken, "ms")
        taken = []
        for letter in "wooden fox 42":
            started = perf_counter()
            await pilot.press("space" if letter == " " else letter)
            await app.workers.wait_for_complete()
            await pilot.pause()
            taken.append(1000 * (perf_counter() - started))
        _print("10,000 conversations: a letter of a search", taken, "ms")


def _no_model(*_arguments: object, **_options: object) -> localspec.Engine:
    raise localspec.LocalspecError("No model is needed here.")


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
