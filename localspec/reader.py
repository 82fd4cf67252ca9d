"""The reader of the task that generates an answer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

from localspec.errors import Cancelled
from localspec.llama import compute_thread
from localspec.scheduling.scheduler import Scheduler
from localspec.scheduling.task import Task
from localspec.stream import Piece, Pieces


class Reader(Pieces):
    """Has a stream read a task.

    Args:
        submit: begins the task, given the thread that is to read it (None for any), and what to
            call when there is something to read.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        submit: Callable[[int | None, Callable[[], object]], Task],
    ) -> None:
        self._scheduler, self._submit = scheduler, submit
        self._task: Task | None = None
        self._cancelled = False

    @property
    def ready(self) -> bool:
        return self._task is not None and self._task.ready

    @property
    def runs(self) -> bool:
        return self._task is not None and not self._task.over

    @property
    def cancelled(self) -> bool:
        return self._task is not None and isinstance(self._task.error, Cancelled)

    def begin(self, told: Callable[[], object] | None = None) -> None:
        if told is None:
            self._task = self._submit(threading.get_ident(), lambda: None)
        else:
            self._task = self._submit(None, told)
        if self._cancelled:
            self._scheduler.cancel(self._task)

    def read(self) -> Iterator[Piece]:
        if self._task is None:
            self.begin()
        assert self._task is not None
        return self._task.items()

    def interrupt(self) -> None:
        self._cancelled = True
        if self._task is not None:
            self._scheduler.cancel(self._task)

    def close(self) -> None:
        task = self._task
        if task is not None and not task.over:
            self._scheduler.cancel(task)
            if not compute_thread.is_current():
                task.wait()
                if task.error is not None and not isinstance(task.error, Cancelled):
                    raise task.error
