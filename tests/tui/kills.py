"""Chats killed at random moments of their answers: text that was shown must be in the history."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from localspec.chat.conversation import INTERRUPTED, Conversation
from localspec.history.history import History
from tests.tui.terminals import PLAIN, SLOW_CHAT, TIMEOUT, Terminal, chat

SIDEBAR, MIDDLE = (0, 32), (32, 108)
"""Cells of a screen of 140."""
LATEST = 1.0
"""Seconds of an answer that may be lost."""
_ANSWER = re.compile(r"tale-13m-q8_0 \d\d:\d\d (.*?) ?(?:[●◌■▌]| · |reading the prompt|measuring)")


def seen(terminal: Terminal, asked: str) -> str | None:
    """The shown part of the answer; None until the question counts as sent."""
    before = len(terminal.raw)
    assert terminal.take(0.02), f"gone:\n{terminal.text}"
    lines = terminal.column(*MIDDLE)
    if len(terminal.raw) != before or asked not in lines:  # not drawn to its end
        return None
    below = " ".join(" ".join(lines[lines.index(asked) + 1 :]).split())
    answer = _ANSWER.match(below)
    return None if below.startswith("sending …") else answer[1] if answer else ""


def listed(terminal: Terminal, title: str) -> None:
    terminal.until(lambda: any(title in line for line in terminal.column(*SIDEBAR)))


def stored(home: Path, title: str) -> Conversation:
    with closing(History(home / "data" / "history.db", repair=False)) as history:
        assert history.trouble is None
        (found,) = [each for each in history.list(limit=100) if each.title.startswith(f"{title}:")]
        return history.load(found.id)


OpenPair = Callable[[], AbstractContextManager[Terminal]]


@dataclass(frozen=True)
class Kill:
    """A killed chat. `sent`: whether its question was seen as sent; `shown`: characters of the
    answer that were seen; `interrupted`: whether the answer was incomplete; `lost`: what is not in
    the history, in words."""

    sent: bool
    shown: int
    interrupted: bool
    lost: str | None


def slow_chat(home: Path) -> OpenPair:
    said = ("-m", "demo", *PLAIN, "-n", "300")
    return partial(chat, *said, command=SLOW_CHAT, home=home, columns=140, lines=45)


def title_of(number: int) -> str:
    return f"Story {number:02}"


def kills(home: Path, opened: OpenPair, count: int, dice: random.Random) -> Iterator[Kill]:
    """Kill several chats with one history, each during its answer, and check the history."""
    for number in range(count):
        asked = f"{title_of(number)}: tell me about a fox."
        # Some at once, most of them in the middle of the answer: so late that some of it is older
        # than what may be lost, but before its end, which some 800 characters make.
        early = number % 5 == 0
        delay = dice.uniform(0.0, 0.4 if early else 2.5)
        looks: list[tuple[float, str]] = []
        with opened() as terminal:
            terminal.until("Write a message")
            terminal.type(f"{asked}\r")
            end = time.monotonic() + (delay if early else TIMEOUT)
            while (now := time.monotonic()) < end and not (looks and len(looks[-1][1]) > 500):
                text = seen(terminal, asked)
                if text is not None:
                    looks.append((now, text))
                if text and not early:
                    early, end = True, now + delay
            terminal.kill()
            killed = time.monotonic()
            assert terminal.ended() == -9
        if not looks:
            yield Kill(False, 0, False, None)
            continue
        question, *answers = stored(home, title_of(number)).path()
        kept = " ".join(" ".join(answer.content for answer in answers).split())
        shown = [text for moment, text in looks if moment <= killed - LATEST][-1:] or [""]
        lost = None if kept.startswith(shown[0]) else f"{asked!r}: {kept!r} lacks of {shown[0]!r}"
        if question.content != asked:
            lost = f"{asked!r} became {question.content!r}"
        length = len(looks[-1][1])
        interrupted = length > 0 and [answer.state for answer in answers] == [INTERRUPTED]
        yield Kill(True, length, interrupted, lost)
