"""Display of a race as two columns of text."""

import shutil
import signal
import sys
from time import perf_counter

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from localspec.cli import output
from localspec.race import LOCALSPEC, NAMES, PLAIN, Ends, Lap, lead
from localspec.text import counted, harmless, rate

_MULTI_TOKEN = "bold cyan"
"""Style of text from passes that yielded several tokens."""
_BETWEEN = " │ "
_HEAD = 2
"""Header lines of each lane."""
_REDRAW_SECONDS = 0.1
"""Minimum time between redraws, which take CPU time from the model."""


class RaceScreen:
    """State and display of a race: drawn on a terminal if `live`, else shown as progress."""

    def __init__(self, console: output.Console, prompt: str, *, live: bool) -> None:
        self.live = live
        self._console = console
        self._screen: Live | None = None
        self._paused = False
        self._due = 0.0
        self._ends: tuple[Ends, Ends] = ([(0, 0.0)], [(0, 0.0)])
        self._before = [0.0, 0.0]
        self._title = ""
        self._prompt = " ".join(harmless(prompt).split())
        self._texts = (Text(), Text())

    def begin(self, title: str) -> None:
        self._title = harmless(title)
        self._draw()

    def ask(self, question: str) -> None:
        """Start a further question in both lanes; their clocks continue."""
        self._before = [ends[-1][1] for ends in self._ends]
        for text in self._texts:
            text.append(f"\n\n› {harmless(question).strip()}\n\n", "dim")

    def show(self, lap: Lap) -> None:
        ends = self._ends[lap.lane]
        ends.append((ends[-1][0] + len(lap.token_ids), self._before[lap.lane] + lap.seconds))
        several = lap.lane == LOCALSPEC and len(lap.token_ids) > 1
        self._texts[lap.lane].append(harmless(lap.text), _MULTI_TOKEN if several else "")
        self._draw()

    def close(self) -> None:
        """Leave the alternate screen, if it was entered."""
        if self._screen is not None:
            self._screen.stop()
            self._screen = None
            if hasattr(signal, "SIGTSTP"):
                signal.signal(signal.SIGTSTP, signal.SIG_DFL)

    def _pause(self, _number: int, _frame: object) -> None:
        """Ctrl+Z: the next redraw leaves the screen to the shell. One may be in progress now."""
        self._paused = True

    def _draw(self) -> None:
        if self._paused:
            self._paused = False
            self.close()
            signal.raise_signal(signal.SIGTSTP)  # returns when the shell continues the race
        now = perf_counter()
        if now < self._due:
            return
        self._due = now + _REDRAW_SECONDS
        if self.live:
            if self._screen is None:
                self._console.erase_progress()
                terminal = Console(file=sys.stdout, highlight=False, markup=False, emoji=False)
                self._screen = Live(console=terminal, screen=True, auto_refresh=False)
                self._screen.start()
                if hasattr(signal, "SIGTSTP"):
                    signal.signal(signal.SIGTSTP, self._pause)
            size = shutil.get_terminal_size()
            self._screen.update(Group(*self.lines(size.columns, size.lines)), refresh=True)
        elif all(counts := [ends[-1][0] for ends in self._ends]):
            self._console.progress(f"tokens: plain {counts[0]}, localspec {counts[1]}")

    def lines(self, width: int, height: int) -> list[Text]:
        """Lines of `width` cells with the last lines of both answers."""
        console = Console(width=width, color_system=None)
        top = [
            _cut(Text.assemble(("localspec race", "bold"), f" · {self._title}"), width),
            _cut(Text(f"› {self._prompt}", "dim"), width),
        ]
        column = (width - len(_BETWEEN)) // 2
        room = max(0, height - len(top) - 1 - _HEAD)
        body = [
            Text.assemble(left, (_BETWEEN, "dim"), right)
            for left, right in zip(
                *(self._lane(console, lane, column, room) for lane in (PLAIN, LOCALSPEC)),
                strict=True,
            )
        ]
        return [*[*top, *body][: height - 1], _cut(self._lead(), width)]

    def _lane(self, console: Console, lane: int, width: int, room: int) -> list[Text]:
        """Exactly `_HEAD` + `room` lines of a lane, padded to the column's width."""
        tokens, seconds = self._ends[lane][-1]
        state = "reading the prompt"
        if tokens:
            speed = tokens / seconds if seconds else 0.0
            state = f"{seconds:.2f} s · {counted(tokens, 'token')} · {rate(speed)} tok/s"
        text = _tail(self._texts[lane], room * width)
        lines = list(text.wrap(console, max(1, width), overflow="fold", tab_size=4))
        lines = lines[max(0, len(lines) - room) :]
        lines += (Text() for _ in range(room - len(lines)))
        lines = [Text(NAMES[lane], "bold"), Text(state, "dim"), *lines]
        for line in lines:
            line.truncate(width, overflow="ellipsis", pad=True)
        return lines

    def _lead(self) -> Text:
        ahead = lead(*self._ends)
        if ahead is None:
            return Text("both alternate, each on its own clock", "dim")
        who = NAMES[LOCALSPEC if ahead >= 0 else PLAIN]
        text = Text(f"{who} is {abs(ahead):.2f} s ahead", "bold green" if ahead >= 0 else "bold")
        return text.append(" · ", "dim").append("several tokens from one pass", _MULTI_TOKEN)


def _cut(text: Text, width: int) -> Text:
    text.truncate(width, overflow="ellipsis")
    return text


def _tail(text: Text, cells: int) -> Text:
    """The last lines of a text that fill at least that many cells."""
    plain = text.plain
    if len(plain) <= 2 * cells:
        return text
    return text[plain.rfind("\n", 0, len(plain) - cells) + 1 :]
