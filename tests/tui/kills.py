"""A chat killed at random moments of its answers: what was seen of them has to be kept."""

import random
import re
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from localspec.chat.conversation import ASSISTANT, INTERRUPTED, USER, Conversation
from localspec.history.history import History
from tests.tui.terminals import PLAIN, SLOW_CHAT, TIMEOUT, Terminal, chat

SIDEBAR, MIDDLE = (0, 32), (32, 108)
"""Cells of a screen of 140."""
LATEST = 1.0
"""Seconds of an answer that may be lost."""
NOTES = ("reading the prompt", "measuring what")
"""Below the head of an answer without text."""
ANIMALS = ("fox", "bear", "duck", "cat", "frog")


@dataclass
class Seen:
    """What was seen of one message: whether it was sent, and the answer at moments of the clock."""

    sent: bool = False
    answers: list[tuple[float, str]] = field(default_factory=list)

    def look(self, terminal: Terminal, asked: str) -> None:
        """Look at a completely drawn screen."""
        lines = terminal.column(*MIDDLE)
        said = next((n for n, line in enumerate(lines) if line == asked), None)
        if said is None:
            return
        below = lines[said + 1 :]
        head = next((n for n, line in enumerate(below) if re.match(r"demo\s+\d\d:\d\d$", line)), -1)
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
    """Take in output; True once the program has paused."""
    before = len(terminal.raw)
    assert terminal.take(0.02), f"gone:\n{terminal.text}"
    return len(terminal.raw) == before


def listed(terminal: Terminal, title: str) -> None:
    terminal.until(lambda: any(title in line for line in terminal.column(*SIDEBAR)))


def only_found(terminal: Terminal, title: str) -> bool:
    """Whether the list shows nothing but one conversation's hits."""
    below_search = terminal.column(*SIDEBAR)[2:]
    titles = [line for line in below_search if "Story" in line]
    return bool(titles) and all(title in line for line in titles)


def stored(home: Path, title: str) -> Conversation:
    with closing(History(home / "data" / "history.db", repair=False)) as history:
        assert history.trouble is None
        (found,) = [each for each in history.list(limit=100) if each.title.startswith(f"{title}:")]
        return history.load(found.id)


Opened = Callable[[], AbstractContextManager[Terminal]]


@dataclass(frozen=True)
class Kill:
    """A killed chat. `sent`: whether its question was seen as sent; `shown`: characters of the
    answer that were seen; `interrupted`: whether the answer was incomplete; `lost`: what is not in
    the history, in words."""

    sent: bool
    shown: int
    interrupted: bool
    lost: str | None


def slow_chat(home: Path) -> Opened:
    said = ("-m", "demo", *PLAIN, "-n", "300")
    return partial(chat, *said, command=SLOW_CHAT, home=home, columns=140, lines=45)


def title_of(number: int) -> str:
    return f"Story {number:02}"


def kills(home: Path, opened: Opened, count: int, dice: random.Random) -> Iterator[Kill]:
    """Kill so many chats of one history, each in its answer, and look at what is left."""
    kept_before: str | None = None
    for number in range(count):
        asked = f"{title_of(number)}: tell me about a {dice.choice(ANIMALS)}."
        # Some at once, most of them in the middle of the answer: so late that some of it is older
        # than what may be lost, but before its end, which some 800 characters make.
        enough = 0 if number % 5 == 0 else 500
        delay = dice.uniform(0.0, 0.4 if number % 5 == 0 else 2.5)
        seen = Seen()
        with opened() as terminal:
            if kept_before is not None:
                listed(terminal, kept_before)
            killed = _killed(terminal, asked, seen, enough, delay)
        kept_before = title_of(number) if seen.sent else None
        if not seen.sent:
            yield Kill(False, 0, False, None)
            continue
        path = stored(home, title_of(number)).path()
        shown = [text for moment, text in seen.answers if moment <= killed - LATEST]
        ended = [message.state for message in path[1:]]
        interrupted = bool(seen.length()) and ended == [INTERRUPTED]
        said = [(message.role, message.content) for message in path]
        yield Kill(True, seen.length(), interrupted, _lost(said, asked, shown[-1] if shown else ""))


def _killed(terminal: Terminal, asked: str, seen: Seen, enough: int, delay: float) -> float:
    """Ask, look on, and kill; the moment of that."""
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
    return killed


def _lost(said: list[tuple[str, str]], asked: str, shown: str) -> str | None:
    if said[0] != (USER, asked):
        return f"{asked!r} became {said[0]!r}"
    if not shown:
        return None
    kept = " ".join(said[1][1].split()) if len(said) > 1 and said[1][0] == ASSISTANT else ""
    return None if kept.startswith(shown) else f"{asked!r}: {kept!r} lacks of {shown!r}"
