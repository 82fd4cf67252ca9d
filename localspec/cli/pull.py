"""`localspec pull`: download a model, and a draft for it."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

from localspec.cli import option_groups as o
from localspec.cli.output import Console, LogToConsole
from localspec.errors import Cancelled
from localspec.gguf.names import PROJECTOR
from localspec.text import gigabytes

if TYPE_CHECKING:
    from localspec.hub.download import PulledModel, PullProgress


EXAMPLES = """\
  localspec pull qwen3-8b --draft auto
  localspec pull unsloth/Qwen3-8B-GGUF:Q5_K_M
  localspec pull https://huggingface.co/user/repo/blob/main/model.gguf"""

PULL = o.parameters("""
    reference: REF
        A name from 'localspec models', user/repo[:quant] of Hugging Face (default Q4_K_M, else the
        nearest to 4 bits), hf.co/user/repo, or the address of a file there.
    -d --draft REF|auto
        Also download a draft model; 'auto' takes the one recommended for this model.
    --offline
        Use only the cache, and report what is missing. (HF_HUB_OFFLINE)
""")


@o.takes(PULL, o.COMMON)
def pull(console: Console, params: o.Params) -> None:
    """Continues an interrupted download, verifies the checksum, and prints the
    path of the file. Credentials come from HF_TOKEN or 'hf auth login';
    HF_HUB_CACHE or HF_HOME set the cache folder.
    """
    reference, draft, offline = (params[name] for name in ("reference", "draft", "offline"))
    references = [reference]
    try:
        from localspec.hub import download
        from localspec.hub.resolution import identify

        identify(reference)  # report errors in either before the download
        if draft is not None:
            second = _catalogue_draft(reference, console) if draft == "auto" else draft
            if second is not None:
                identify(second)
                references.append(second)
        display = DownloadDisplay(console)
        pull_one = partial(download.pull, notify=console.notice, command=console.command)
        with forward_client_log(console):
            pulled = [pull_one(one, offline=offline, progress=display.show) for one in references]
    except KeyboardInterrupt:
        raise Cancelled(f"Interrupted. '{console.command}' continues it.") from None
    _print_models(console, pulled)


def _catalogue_draft(reference: str, console: Console) -> str | None:
    from localspec.hub import catalog

    entry = catalog.load().entry_for(reference)
    if entry is None or not entry.drafts:
        lacks = f"does not know {reference}, so no draft"
        if entry is not None:
            lacks = f"has no draft for {entry.name}, so none"
        console.notice(
            f"The catalogue {lacks} is downloaded. Name one with --draft, or rely on the n-gram "
            "drafter, which needs none."
        )
        return None
    return entry.drafts[0]


def _print_models(console: Console, pulled: list[PulledModel]) -> None:
    if console.json:
        target, draft = (*pulled, None)[:2]
        console.answer_json({"model": target, "draft": draft})
        return
    for model in pulled:
        console.answer(f"{model.path}\n")
        if model.repository is not None:  # others were reported already
            again = f"nothing to download; to get it again, first 'localspec rm {model.reference}'"
            news = f"{gigabytes(model.downloaded)} downloaded" if model.downloaded else again
            console.notice(f"{model.reference} is here, {gigabytes(model.size)} ({news}).")
    first, last = (shlex.quote(model.reference) for model in (pulled[0], pulled[-1]))
    with_draft = f" -d {last}" if len(pulled) > 1 else ""
    use = f"Run it with 'localspec run -m {first}{with_draft}'."
    if PROJECTOR in pulled[0].path.name:
        use = f"Open it together with its model: '--mmproj {shlex.quote(str(pulled[0].path))}'."
    console.notice(use)


_SECONDS_BETWEEN_LINES = 10.0


class DownloadDisplay:
    """A progress line with speed and remaining time; without a terminal, occasional notices."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._part: tuple[int, str] | None = None
        self._began = self._due = 0.0
        self._before = 0

    def show(self, now: PullProgress) -> None:
        time, begins = monotonic(), self._part != (now.number, now.doing)
        if begins:
            self._part, self._began, self._before = (now.number, now.doing), time, now.done
        which = f" ({now.number} of {now.of})" if now.of > 1 else ""
        doing = "checking " if now.doing == "check" else ""
        percent = 100 * now.done // max(now.total, 1)
        text = f"{doing}{now.file.rpartition('/')[2]}{which}: {percent}% of {gigabytes(now.total)}"
        if self._console.shows_progress:
            if time - self._began > 1.0 and now.done > self._before:
                from localspec.chat.words import seconds

                speed = (now.done - self._before) / (time - self._began)
                text += (
                    f", {gigabytes(int(speed))}/s, {seconds((now.total - now.done) / speed)} left"
                )
            self._console.progress(text, at_once=begins)
        elif begins or time >= self._due:
            self._due = time + _SECONDS_BETWEEN_LINES
            if now.doing == "download" or not begins:  # checks are usually short
                self._console.notice(text)


@contextmanager
def forward_client_log(console: Console) -> Iterator[None]:
    """Send huggingface-hub's log to the console, with -v."""
    from localspec.hub.cache import require_client

    require_client()
    import huggingface_hub.utils  # noqa: F401  (adds the handler that is replaced)

    logger = logging.getLogger("huggingface_hub")
    handler = LogToConsole(console) if console.verbosity else logging.NullHandler()
    before, logger.handlers = logger.handlers, [handler]
    try:
        yield
    finally:
        logger.handlers = before
