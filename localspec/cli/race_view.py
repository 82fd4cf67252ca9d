"""A race as lines of text: two columns, or one below the other."""

from __future__ import annotations

from itertools import zip_longest

from rich.console import Console
from rich.text import Text

from localspec.answer_line import rate
from localspec.race.turns import LOCALSPEC, NAMES, PLAIN, Lap, RaceProgress
from localspec.text import harmless

NARROW = 60
"""Columns below which the lanes are one below the other."""
_SEVERAL = "bold cyan"
"""Style of text that came as several tokens of one pass."""
_BETWEEN = " │ "
_HEAD = 2
"""Lines of each lane before its text."""


class RaceView:
    """The race so far."""

    def __init__(self, prompt: str, title: str) -> None:
        self.progress = RaceProgress()
        self._prompt = " ".join(harmless(prompt).split())
        self._title = harmless(title)
        self._texts = (Text(), Text())

    def ask(self, question: str) -> None:
        """Both lanes come to a further question."""
        for text in self._texts:
            text.append(f"\n\n› {harmless(question).strip()}\n\n", "dim")

    def add(self, lap: Lap) -> None:
        self.progress.add(lap)
        several = lap.lane == LOCALSPEC and len(lap.token_ids) > 1
        self._texts[lap.lane].append(harmless(lap.text), _SEVERAL if several else "")

    def lines(self, width: int, height: int | None) -> list[Text]:
        """Lines of `width` cells with the ends of the answers; all of them for no height."""
        console = Console(width=width, color_system=None)
        top = [
            _cut(Text.assemble(("localspec race", "bold"), f" · {self._title}"), width),
            _cut(Text(f"› {self._prompt}", "dim"), width),
        ]
        narrow = width < NARROW
        column = width if narrow else (width - len(_BETWEEN)) // 2
        room = None if height is None else height - len(top) - 1 - _HEAD
        if room is not None and narrow:
            room = (room - _HEAD) // 2
        lanes = [self._lane(console, lane, column, room) for lane in (PLAIN, LOCALSPEC)]
        body = [*lanes[0], *lanes[1]] if narrow else _side_by_side(lanes[0], lanes[1], column)
        if height is None:
            return [*top, *body]
        return [*[*top, *body][: max(0, height - 1)], _cut(self._standing(), width)][:height]

    def _lane(self, console: Console, lane: int, width: int, room: int | None) -> list[Text]:
        """A lane's lines; exactly `_HEAD` + `room` of them with a `room`."""
        tokens, seconds = self.progress.tokens(lane), self.progress.seconds(lane)
        state = "reading the prompt"
        if tokens:
            speed = tokens / seconds if seconds else 0.0
            state = f"{seconds:.2f} s · {tokens} token{'' if tokens == 1 else 's'}"
            state += f" · {rate(speed)} tok/s"
        head = [_cut(Text(NAMES[lane], "bold"), width), _cut(Text(state, "dim"), width)]
        if room is None:
            return [*head, *_wrapped(self._texts[lane], console, width)]
        room = max(room, 0)
        lines = _wrapped(_tail(self._texts[lane], room * width), console, width)
        lines = lines[max(0, len(lines) - room) :]
        return [*head, *lines, *(Text() for _ in range(room - len(lines)))]

    def _standing(self) -> Text:
        lead = self.progress.lead()
        if lead is None:
            return Text("both alternate, each on its own clock", "dim")
        who = NAMES[LOCALSPEC if lead >= 0 else PLAIN]
        text = Text(f"{who} is {abs(lead):.2f} s ahead", "bold green" if lead >= 0 else "bold")
        return text.append(" · ", "dim").append("several tokens from one pass", _SEVERAL)


def _cut(text: Text, width: int) -> Text:
    text.truncate(width, overflow="ellipsis")
    return text


def _wrapped(text: Text, console: Console, width: int) -> list[Text]:
    if not text:
        return []
    text = text.copy()
    text.expand_tabs(4)
    return list(text.wrap(console, max(1, width), overflow="fold"))


def _tail(text: Text, cells: int) -> Text:
    """The end of a text, from a line's beginning, that fills at least so many cells."""
    plain = text.plain
    if len(plain) <= 2 * cells:
        return text
    return text[plain.rfind("\n", 0, len(plain) - cells) + 1 :]


def _side_by_side(left: list[Text], right: list[Text], width: int) -> list[Text]:
    lines = []
    for one, other in zip_longest(left, right, fillvalue=Text()):
        one = one.copy()
        one.truncate(width, pad=True)
        lines.append(Text.assemble(one, (_BETWEEN, "dim"), other))
    return lines
