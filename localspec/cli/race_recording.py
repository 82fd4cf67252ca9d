"""A race as a file: an asciinema recording, or a picture of its end.

Time in a recording is the lanes' own clocks, as if two machines had run it. Format:
https://docs.asciinema.org/manual/asciicast/v2/.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.text import Text

from localspec.cli.race_view import RaceView, paragraph
from localspec.errors import LocalspecError, UsageError
from localspec.files import write_atomically
from localspec.race.turns import Lap, in_order

ENDINGS = (".cast", ".svg")
_FRAMES = 12
"""Frames per second, at most."""
_REST = 4.0
"""Seconds that the end stays."""


def prepare(path: Path) -> Path:
    """Check where a recording goes, before there is one.

    Raises:
        UsageError: another ending, a file that is there already, a folder that takes none.
    """
    path = path.expanduser()
    if path.suffix.lower() not in ENDINGS:
        raise UsageError(
            f"--record does not know the format of '{path.name}'. Let it end in .cast (an "
            "asciinema recording) or .svg (a picture)."
        )
    try:
        there, folder = path.exists() or path.is_symlink(), path.parent.is_dir()
    except (OSError, ValueError) as error:
        cause = getattr(error, "strerror", None) or error
        raise UsageError(f"--record cannot use that name: {cause}. Name another file.") from None
    if there:
        raise UsageError(f"--record does not replace {path}. Remove it, or name another file.")
    if not folder:
        raise UsageError(f"--record names no folder: {path.parent}. Make it, or name another.")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise UsageError(f"--record cannot write into {path.parent}. Name a folder that you own.")
    return path


def write(
    path: Path,
    view: Callable[[], RaceView],
    laps: Sequence[Lap],
    figures: str,
    *,
    size: tuple[int, int],
) -> None:
    """Write the recording of a race.

    Args:
        view: makes an empty view of this race.
        laps: all turns.
        figures: shown at its end.
        size: columns and lines.

    Raises:
        LocalspecError: the disk is full, or cannot be written to.
    """
    width, height = size
    if path.suffix.lower() == ".svg":
        content = picture(view(), laps, figures, width)
    else:
        content = recording(view(), laps, figures, width, height)
    try:
        write_atomically(path, content)
    except OSError as error:
        raise LocalspecError(
            f"{path} cannot be written: {error.strerror or error}. Free some space, or record "
            "into another folder."
        ) from error


def recording(view: RaceView, laps: Sequence[Lap], figures: str, width: int, height: int) -> str:
    """An asciicast of version 2: a header, then [seconds, "o", text], one JSON value per line."""
    header = {
        "version": 2,
        "width": width,
        "height": height,
        "timestamp": int(time.time()),
        "title": "localspec race",
        "env": {"TERM": "xterm-256color"},
    }
    console = _player(width)
    shown_figures = paragraph(figures, width)
    events = [(0.0, "\x1b[?25l" + _frame(console, view.lines(width, height)))]
    due = end = 0.0
    for lap in in_order(laps):
        view.add(lap)
        end = lap.seconds
        if end >= due:
            due = end + 1.0 / _FRAMES
            events.append((end, _frame(console, view.lines(width, height))))
    last = [*view.lines(width, max(0, height - len(shown_figures)) + 1)[:-1], *shown_figures]
    events += [(end, _frame(console, last)), (end + _REST, "\x1b[?25h")]
    lines = [json.dumps([round(seconds, 6), "o", text]) for seconds, text in events]
    return "\n".join([json.dumps(header), *lines]) + "\n"


def picture(view: RaceView, laps: Sequence[Lap], figures: str, width: int) -> str:
    """An SVG of both answers and the figures."""
    for lap in in_order(laps):
        view.add(lap)
    console = _player(width)
    console.record = True
    show(console, [*view.lines(width, None), *paragraph(figures, width)])
    return console.export_svg(title="localspec race")


def show(console: Console, lines: Sequence[Text]) -> None:
    """Print lines, each in a row of its own."""
    for line in lines:
        console.print(line, no_wrap=True, overflow="crop", crop=True)


def _frame(console: Console, lines: Sequence[Text]) -> str:
    with console.capture() as captured:
        show(console, lines)
    return "\x1b[H\x1b[2J" + captured.get().rstrip("\n").replace("\n", "\r\n")


def _player(width: int) -> Console:
    """The colours that every player has; NO_COLOR is heeded."""
    return Console(
        file=StringIO(),
        width=width,
        force_terminal=True,
        color_system="256",
        no_color=bool(os.environ.get("NO_COLOR")),
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
        _environ={},
    )
