"""The process is killed at random moments of an answer, ten times, and nothing is lost."""

import random
from functools import partial
from pathlib import Path

import pytest

from tests.tui.kills import MIDDLE, kills, listed, only_found, slow_chat, stored, title_of

pytestmark = pytest.mark.nightly

ROUNDS = 10


def test_a_killed_chat_loses_nothing(tmp_path: Path) -> None:
    opened = slow_chat(tmp_path)
    found = list(kills(tmp_path, opened, ROUNDS, random.Random(4)))
    assert [kill.lost for kill in found] == [None] * ROUNDS
    interrupted = [number for number, kill in enumerate(found) if kill.interrupted]
    # It would show nothing if answers were over before they were killed.
    assert len(interrupted) >= ROUNDS // 2

    with opened() as terminal:
        terminal.until("Write a message")
        for number, neighbour in (interrupted[:2], interrupted[:-3:-1]):
            title, other = title_of(number), title_of(neighbour)
            question, answer = stored(tmp_path, title).path()
            listed(terminal, other)
            terminal.type(f'\x06"{title}"')  # Ctrl+F
            terminal.until(partial(only_found, terminal, title))
            # Enter goes from the search to what it found, and Enter there opens that. Each once:
            # Textual gives an Enter to what has the focus when it comes to it, which is the search
            # again where Ctrl+F has overtaken it.
            terminal.type("\r")
            terminal.until("⏎ Open")
            terminal.type("\r")
            found_one = f"▌ {question.content}"  # what was found is selected
            terminal.until(lambda: found_one in terminal.column(*MIDDLE))  # noqa: B023
            # Of its first line: what is below may be code, which is shown without its marks.
            beginning = " ".join(answer.content.strip().split("\n")[0].split()[:12])
            terminal.until(lambda: beginning in terminal.flow(*MIDDLE))  # noqa: B023
            terminal.until("localspec ended during this answer")
            terminal.type("\x06\x15")  # Ctrl+U
