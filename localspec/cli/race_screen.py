"""Drawing lines on a terminal: only those that changed, from the second time on."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from io import StringIO

from rich.console import Console as RichConsole
from rich.text import Text

from localspec.cli.output import Console

BEGIN = "\x1b[?1049h\x1b[?25l\x1b[H\x1b[2J"
"""To the terminal's other screen, where what stood before is safe, with the cursor hidden."""
END = "\x1b[?25h\x1b[?1049l"


class Painter:
    """What to send a terminal so that it shows lines.

    Args:
        console: says which colours there are; see `of_terminal` and `of_recording`.
    """

    def __init__(self, console: RichConsole) -> None:
        self._console = console
        self._shown: list[str] = []
        self._size = (0, 0)

    def paint(self, lines: Sequence[Text], width: int, height: int) -> str:
        """The difference to what was painted before; all of it where the size is another one."""
        parts = []
        if self._size != (width, height):
            parts, self._shown, self._size = ["\x1b[2J"], [], (width, height)
        drawn = [encoded(self._console, line, width) for line in lines[:height]]
        drawn += [""] * (len(self._shown) - len(drawn))
        for row, line in enumerate(drawn):
            if row >= len(self._shown) or self._shown[row] != line:
                parts.append(f"\x1b[{row + 1};1H\x1b[K{line}")
        self._shown = drawn
        return "".join(parts)


class Screen:
    """The terminal's other screen, for as long as a race lasts."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._painter = Painter(of_terminal())
        self._begun = False

    def show(self, lines: Sequence[Text], width: int, height: int) -> None:
        """Draw.

        Raises:
            OutputLost: the terminal is gone.
        """
        text = self._painter.paint(lines, width, height)
        if not self._begun:
            self._begun, text = True, BEGIN + text
        self._console.draw(text)

    def leave(self) -> None:
        """Back to where the user was."""
        if self._begun:
            self._begun = False
            self._console.draw(END)


def encoded(console: RichConsole, line: Text, width: int) -> str:
    """A line with its colours, as that console's terminal takes them."""
    with console.capture() as captured:
        console.print(line, end="", width=width, no_wrap=True, overflow="crop", crop=True)
    return captured.get()


def of_terminal() -> RichConsole:
    """The colours of standard output; NO_COLOR is heeded."""
    return RichConsole(file=sys.stdout, highlight=False, markup=False, emoji=False)


def of_recording(width: int, height: int | None = None, *, record: bool = False) -> RichConsole:
    """The colours that every player of recordings has; NO_COLOR is heeded."""
    return RichConsole(
        file=StringIO(),
        width=width,
        height=height,
        record=record,
        force_terminal=True,
        color_system="256",
        no_color=bool(os.environ.get("NO_COLOR")),
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
        _environ={},
    )
