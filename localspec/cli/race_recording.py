"""A race as a file: an asciinema recording, or a picture of its end.

A recording shows the race as it would have gone on two machines: time in it is the lanes' own
clocks. See https://docs.asciinema.org/manual/asciicast/v2/.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from localspec.cli.race_screen import END, Painter, of_recording
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
    """Check where a recording shall go, before there is one.

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
        if path.exists() or path.is_symlink():
            raise UsageError(f"--record does not replace {path}. Remove it, or name another file.")
        folder = path.parent
        if not folder.is_dir():
            raise UsageError(f"--record names no folder: {folder}. Make it, or name another.")
        if not os.access(folder, os.W_OK | os.X_OK):
            raise UsageError(f"--record cannot write into {folder}. Name a folder that you own.")
    except (OSError, ValueError) as error:
        if isinstance(error, UsageError):
            raise
        cause = getattr(error, "strerror", None) or error
        raise UsageError(f"--record cannot use that name: {cause}. Name another file.") from None
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
        figures: what is said at its end.
        size: columns and lines.

    Raises:
        LocalspecError: the disk is full, or refuses to be written.
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
    painter = Painter(of_recording(width, height))
    shown_figures = paragraph(figures, width)
    lines = [
        json.dumps(header),
        _event(0.0, "\x1b[?25l" + painter.paint(view.lines(width, height), width, height)),
    ]
    due = end = 0.0
    for lap in in_order(laps):
        view.add(lap)
        end = lap.seconds
        if end >= due:
            due = end + 1.0 / _FRAMES
            lines.append(_event(end, painter.paint(view.lines(width, height), width, height)))
    last = [*view.lines(width, max(0, height - len(shown_figures)) + 1)[:-1], *shown_figures]
    lines.append(_event(end, painter.paint(last, width, height)))
    lines.append(_event(end + _REST, END[:6]))
    return "\n".join(lines) + "\n"


def picture(view: RaceView, laps: Sequence[Lap], figures: str, width: int) -> str:
    """An SVG of both answers and the figures."""
    for lap in in_order(laps):
        view.add(lap)
    console = of_recording(width, record=True)
    for line in [*view.lines(width, None), *paragraph(figures, width)]:
        console.print(line, width=width, no_wrap=True, overflow="crop", crop=True)
    return console.export_svg(title="localspec race")


def _event(seconds: float, text: str) -> str:
    return json.dumps([round(seconds, 6), "o", text])
