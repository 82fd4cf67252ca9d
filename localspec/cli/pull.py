"""`localspec pull`: download a model, and a draft for it."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from localspec.cli import option_groups as o
from localspec.cli.output import Console, LogToConsole
from localspec.errors import Cancelled
from localspec.text import gigabytes, printable

if TYPE_CHECKING:
    from localspec.hub.download import Pulled, PullProgress


EXAMPLES = """\
Examples:
  localspec pull qwen3-8b --draft auto
  localspec pull unsloth/Qwen3-8B-GGUF:Q5_K_M
  localspec pull https://huggingface.co/user/repo/blob/main/model.gguf"""

_option = o.in_panel(None)
PULL = {
    "draft": _option(
        "-d --draft REF|auto",
        "Also download a draft model; 'auto' takes the one recommended for this model.",
    ),
    "offline": _option(
        "--offline", "Use only the cache, and report what is missing. (HF_HUB_OFFLINE)"
    ),
}


@o.takes(PULL, o.COMMON)
def pull(context: typer.Context, reference: o.Reference) -> int:
    """Download a model from Hugging Face.

    Continues an interrupted download, verifies the checksum, and prints the
    path of the file. Credentials come from HF_TOKEN or 'hf auth login';
    HF_HUB_CACHE or HF_HOME set the cache folder.
    """
    draft, offline = context.params["draft"], context.params["offline"]
    console: Console = context.obj
    references = [reference]
    try:
        from localspec.hub import download
        from localspec.hub.resolution import identify

        identify(reference)  # errors in either, before gigabytes are fetched
        if draft is not None:
            second = _draft(reference, console) if draft == "auto" else draft
            if second is not None:
                identify(second)
                references.append(second)
        with DownloadDisplay(console) as display, client_speaks_through(console):
            pulled = [
                download.pull(one, offline=offline, progress=display.show, notify=display.notice)
                for one in references
            ]
    except KeyboardInterrupt:
        raise Cancelled(
            f"Interrupted. The part so far is kept; 'localspec pull {reference}' continues."
        ) from None
    _print(console, pulled)
    return 0


def _draft(reference: str, console: Console) -> str | None:
    from localspec.hub import catalog

    entry = catalog.load().meant_by(reference)
    if entry is None or not entry.drafts:
        lacks = f"does not know {reference}, so no draft"
        if entry is not None:
            lacks = f"has no draft for {entry.name}, so none"
        console.notice(
            f"The catalogue {lacks} is fetched. Name one with --draft, or rely on the n-gram, "
            "which needs none."
        )
        return None
    return entry.drafts[0]


def _print(console: Console, pulled: list[Pulled]) -> None:
    if console.json:
        records = [_record(one) for one in pulled]
        result = {"model": records[0], "draft": records[1] if len(records) > 1 else None}
        console.answer_json(result)
        return
    for one in pulled:
        console.answer(f"{one.path}\n")
        news = (
            f"{gigabytes(one.downloaded)} downloaded" if one.downloaded else "nothing to download"
        )
        console.notice(f"{one.reference} is here, {gigabytes(one.size)} ({news}).")
    with_draft = f" -d {pulled[1].reference}" if len(pulled) > 1 else ""
    console.notice(f"Run it with 'localspec run -m {pulled[0].reference}{with_draft}'.")


def _record(one: Pulled) -> dict[str, Any]:
    values = dataclasses.asdict(one)
    return values | {"path": str(one.path), "files": [str(path) for path in one.files]}


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
    said = _Quoting(console) if console.verbosity else logging.NullHandler()
    before, logger.handlers = logger.handlers, [said]
    try:
        yield
    finally:
        logger.handlers = before


class _Quoting(LogToConsole):
    """Log records as single lines that cannot steer the terminal: servers dictate some."""

    def format(self, record: logging.LogRecord) -> str:
        return f"{record.levelname} {record.name}: {printable(record.getMessage())}"
