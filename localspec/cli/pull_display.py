"""Progress of a download: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from localspec.cli.output import Console
from localspec.text import gigabytes, printable

if TYPE_CHECKING:
    from localspec.hub.download import PullProgress

_SECONDS_BETWEEN_LINES = 10.0


class DownloadDisplay:
    def __init__(self, console: Console, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._bar: Any = None
        self._shown: tuple[int, str] | None = None
        self._task: Any = None
        self._due = 0.0

    def __enter__(self) -> DownloadDisplay:
        if self._console.shows_progress:
            self._bar = _bar()
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def notice(self, text: str) -> None:
        if self._bar is None:
            self._console.notice(text)
            return
        # Rich's own redraws would run into what is printed past it.
        self._bar.stop()
        self._console.notice(text)
        self._bar.start()

    def show(self, now: PullProgress) -> None:
        which = f" ({now.number} of {now.of})" if now.of > 1 else ""
        doing = "checking " if now.doing == "check" else ""
        label = f"{doing}{now.file.rpartition('/')[2]}{which}"
        begins, self._shown = self._shown != (now.number, now.doing), (now.number, now.doing)
        if self._bar is not None:
            if begins and self._task is not None:
                self._bar.remove_task(self._task)
            if begins:
                self._task = self._bar.add_task(label, total=now.total)
            self._bar.update(self._task, completed=now.done)
        elif begins or self._clock() >= self._due:
            self._due = self._clock() + _SECONDS_BETWEEN_LINES
            if now.doing == "download" or not begins:  # checking is mostly over at once
                percent = 100 * now.done // max(now.total, 1)
                self._console.notice(f"{label}: {percent} % of {gigabytes(now.total)}")


def _bar() -> Any:
    from rich import progress
    from rich.console import Console as RichConsole

    return progress.Progress(
        # Names of files are no markup.
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(),
        progress.DownloadColumn(),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(compact=True),
        console=RichConsole(stderr=True),
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )


@contextmanager
def client_speaks_through(console: Console) -> Iterator[None]:
    """Send huggingface-hub's log to the console, with -v."""
    from localspec.hub.cache import require_client

    require_client()
    import huggingface_hub.utils  # noqa: F401  (makes the handler that is replaced)

    logger = logging.getLogger("huggingface_hub")
    before, logger.handlers = logger.handlers, [_Quoting(console)]
    try:
        yield
    finally:
        logger.handlers = before


class _Quoting(logging.Handler):
    """Log records as single lines that cannot steer the terminal: servers dictate some."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        if self._console.verbosity:
            self._console.say(f"{record.levelname} {record.name}: {printable(record.getMessage())}")
