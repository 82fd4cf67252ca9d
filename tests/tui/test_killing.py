"""The process is killed at random moments of an answer, twenty times, and nothing is lost."""

from __future__ import annotations

import random
from pathlib import Path

from tests.tui.kills import MIDDLE, SIDEBAR, kills, listed, slow_chat, stored, title_of

ROUNDS = 20


def test_a_killed_chat_loses_nothing(tmp_path: Path) -> None:
    opened = slow_chat(tmp_path)
    interrupted = 0
    for kill in kills(tmp_path, opened, ROUNDS, random.Random(4)):
        assert kill.lost is None
        interrupted += kill.interrupted
    # It would show nothing if answers were over before they were killed.
    assert interrupted >= ROUNDS // 2

    with opened() as terminal:
        terminal.until("ended suddenly last time")
        for number in (2, ROUNDS - 1):
            title, other = title_of(number), title_of(number - 1)
            question, answer = stored(tmp_path, title).path()
            listed(terminal, other)
            terminal.type(f'\x06"{title}"')  # Ctrl+F
            terminal.until(lambda: all(other not in line for line in terminal.column(*SIDEBAR)))  # noqa: B023
            # Enter goes from the search to what it found, and Enter there opens that.
            while question.content not in terminal.column(*MIDDLE):
                terminal.type("\r")
                terminal.take(1.0)
            beginning = " ".join(answer.content.split()[:12])
            terminal.until(lambda: beginning in terminal.flow(*MIDDLE))  # noqa: B023
            terminal.until("localspec ended before this answer did")
            terminal.type("\x06\x15")  # Ctrl+U
