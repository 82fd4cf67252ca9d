"""The download of models, with progress."""

import asyncio
from collections.abc import Sequence
from functools import partial
from time import monotonic
from typing import ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import ProgressBar, Static

from localspec.errors import Cancelled, describe
from localspec.hub.download import PullProgress
from localspec.text import gigabytes, harmless
from localspec.tui.screens.dialogs import Dialog

_EVERY = 0.2
"""Seconds between two redraws."""


class DownloadScreen(Dialog[bool]):
    """Downloads references in order; its result is whether all were downloaded."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", "Stop the download")]

    def __init__(self, references: Sequence[str]) -> None:
        super().__init__()
        self._references = references
        self._cancelled = self._over = False
        self._shown = 0.0

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static(f"Downloading {harmless(' and '.join(self._references))}", markup=False)
            yield ProgressBar(id="progress")
            yield Static("Looking for the files …", id="about", markup=False)

    @work(group="download")
    async def on_mount(self) -> None:
        from localspec.hub import download

        try:
            for reference in self._references:
                # The user has chosen a model to download, so the network may be used.
                pull = partial(download.pull, reference, offline=False, progress=self._progress)
                await asyncio.to_thread(pull)
        except Cancelled:
            self.dismiss(False)
        except Exception as error:  # an unhandled error would end the app
            self._over = True
            self._about(f"{describe(error)[0]} Esc closes this.")
        else:
            self.dismiss(True)

    def on_unmount(self) -> None:
        """Stop the thread, which the app would wait for at exit."""
        self._cancelled = True

    def _progress(self, progress: PullProgress) -> None:
        """Show progress. Called in the download thread."""
        if self._cancelled:
            raise Cancelled("The download was stopped.")
        now = monotonic()
        if now - self._shown >= _EVERY or progress.done == progress.total:
            self._shown = now
            self.app.call_from_thread(self._show, progress)

    def _show(self, progress: PullProgress) -> None:
        if not self.is_attached:
            return
        self.query_one(ProgressBar).update(total=progress.total, progress=progress.done)
        doing = "checking" if progress.doing == "check" else "downloading"
        which = f" ({progress.number} of {progress.of})" if progress.of > 1 else ""
        self._about(
            f"{doing} {progress.file}{which}: {gigabytes(progress.done)} of "
            f"{gigabytes(progress.total)}"
        )

    def _about(self, text: str) -> None:
        self.query_one("#about", Static).update(harmless(text))

    def action_cancel(self) -> None:
        """Stop after the next chunk; the downloaded part is kept."""
        if self._over:
            self.dismiss(False)
        self._cancelled = True
        self._about("Stopping; the downloaded part is kept …")
