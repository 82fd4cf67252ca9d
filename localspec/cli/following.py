"""The main thread while a job runs: progress, Ctrl+C, failures, and the job's own events."""

from __future__ import annotations

from collections.abc import Callable

from localspec.cli import crashes
from localspec.cli.interrupts import on_interrupt
from localspec.cli.output import Console
from localspec.cli.worker import AnswerFailed, EngineJob, Own, ProgressNote, Stopping


def follow(
    job: EngineJob[Own],
    console: Console,
    handle: Callable[[Own], object],
    *,
    writing: Callable[[], bool],
    restore: str = "",
) -> None:
    """Hand what a job brings to `handle`, up to its end.

    Args:
        writing: whether standard output is in the middle of something: progress behind it would
            take its line away.
        restore: sent to standard output where a second Ctrl+C leaves at once.

    Raises:
        Whatever made the job fail, and what `handle` raises; the job is over then as well.
    """
    crashes.watch()
    with on_interrupt(job.cancel, restore.encode()):
        try:
            for event in job.events():
                if isinstance(event, ProgressNote):
                    console.progress(event.text)
                elif isinstance(event, Stopping):
                    if not writing():
                        console.progress(
                            "stopping; press Ctrl+C again to exit at once", at_once=True
                        )
                elif isinstance(event, AnswerFailed):
                    raise event.error
                else:
                    handle(event)
        except BaseException:
            job.cancel()
            raise
        finally:
            console.erase_progress()
            job.join()
