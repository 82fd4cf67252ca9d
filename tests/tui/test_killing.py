"""The process is killed at random moments of an answer, twenty times, and nothing is lost."""

from __future__ import annotations

import random
import re
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from localspec.chat.conversation import ASSISTANT, INTERRUPTED, USER, Conversation
from localspec.history.history import History
from tests.tui.terminals import PLAIN, SLOW_CHAT, TIMEOUT, Terminal, chat

ROUNDS = 20
SIDEBAR, MIDDLE = (0, 32), (32, 108)
"""Cells of a screen of 140."""
LATEST = 1.0
"""Seconds of an answer that may be lost, as the issue has it."""
NOTES = ("reading the prompt", "measuring what")
"""What stands below the head of an answer that has no text yet."""
ANIMALS = ("fox", "bear", "duck", "cat", "frog")


@dataclass
class Seen:
    """What a person at the screen has seen of one message.

    Attributes:
        sent: whether it was shown as sent.
        answers: the answer's text, as it stood at moments of the clock.
    """

    sent: bool = False
    answers: list[tuple[float, str]] = field(default_factory=list)

    def look(self, terminal: Terminal, asked: str) -> None:
        """Look at a screen that is drawn completely."""
        lines = terminal.column(*MIDDLE)
        said = next((n for n, line in enumerate(lines) if line == asked), None)
        if said is None:
            return
        below = lines[said + 1 :]
        head = next(
            (n for n, line in enumerate(below) if re.match(r"tale-13m\s+\d\d:\d\d$", line)), -1
        )
        self.sent = self.sent or "sending …" not in below
        if head < 0:
            return
        text: list[str] = []
        for line in below[head + 1 :]:
            if line[:1] in ("●", "◌", "■", "▌") or " · " in line:
                break
            if line.startswith(NOTES):
                return
            text.append(line)
        self.answers.append((time.monotonic(), " ".join(" ".join(text).split())))

    def length(self) -> int:
        return len(self.answers[-1][1]) if self.answers else 0


def drawn(terminal: Terminal) -> bool:
    """Take in what there is; True once the program has paused."""
    before = len(terminal.raw)
    assert terminal.take(0.02), f"gone:\n{terminal.text}"
    return len(terminal.raw) == before


def listed(terminal: Terminal, title: str) -> None:
    """Wait until a conversation is in the list."""
    terminal.until(lambda: any(title in line for line in terminal.column(*SIDEBAR)))


def stored(home: Path, title: str) -> Conversation:
    history = History(home / "data" / "history.db", repair=False)
    try:
        assert history.trouble is None
        (found,) = [each for each in history.list(limit=100) if each.title.startswith(title)]
        return history.load(found.id)
    finally:
        history.close()


def test_a_killed_chat_loses_nothing(tmp_path: Path) -> None:
    dice = random.Random(4)
    opened = partial(
        chat, *PLAIN, "-n", "300", command=SLOW_CHAT, home=tmp_path, columns=140, lines=45
    )
    interrupted = 0
    kept_before: str | None = None
    for number in range(ROUNDS):
        title = f"Story {number:02}"
        asked = f"{title}: tell me about a {dice.choice(ANIMALS)}."
        # Some at once, most of them in the middle of the answer: so late that some of it is older
        # than what may be lost, but before its end, which some 800 characters make.
        enough = 0 if number % 5 == 0 else 500
        delay = dice.uniform(0.0, 0.4 if number % 5 == 0 else 2.5)
        seen = Seen()
        with opened() as terminal:
            if kept_before is not None:
                listed(terminal, kept_before)
            terminal.until("Write a message")
            terminal.type(f"{asked}\r")
            latest = time.monotonic() + TIMEOUT
            while enough and not seen.length():
                assert time.monotonic() < latest, terminal.text
                if drawn(terminal):
                    seen.look(terminal, asked)
            end = time.monotonic() + delay
            while time.monotonic() < end and (not enough or seen.length() < enough):
                if drawn(terminal):
                    seen.look(terminal, asked)
            terminal.kill()
            killed = time.monotonic()
            assert terminal.ended() == -9

        kept_before = title if seen.sent else None
        if not seen.sent:
            continue
        path = stored(tmp_path, title).path()
        assert (path[0].role, path[0].content) == (USER, asked)
        shown = [text for moment, text in seen.answers if moment <= killed - LATEST]
        if shown and shown[-1]:
            assert path[1].role == ASSISTANT
            kept = " ".join(path[1].content.split())
            assert kept.startswith(shown[-1]), f"round {number}: {kept!r} lacks of {shown[-1]!r}"
        if seen.length() and [m.state for m in path[1:]] == [INTERRUPTED]:
            interrupted += 1
    # It would show nothing if answers were over before they were killed.
    assert interrupted >= ROUNDS // 2

    with opened() as terminal:
        terminal.until("ended suddenly last time")
        for number in (2, ROUNDS - 1):
            title, other = f"Story {number:02}", f"Story {number - 1:02}"
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
