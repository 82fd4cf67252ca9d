"""The scheduler: all tasks of an engine run in one thread, which also runs their passes.

A task is straight-line code in a greenlet. Where it waits (for a shared pass, for room, for its
reader) the thread runs the next one. So no locks are needed, and a task that fails or is cancelled
unwinds like any other code.
"""

import atexit
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from time import perf_counter

import greenlet

from localspec.errors import Cancelled, EngineBusy, UsageError
from localspec.llama import compute_thread
from localspec.scheduling.task import AHEAD, CLOSED, NOT_HERE, Task, Wait
from localspec.text import counted

_all = weakref.WeakSet["Scheduler"]()
_python_ends = threading.Event()


@atexit.register
def _end_tasks() -> None:
    """Python ends a daemon thread by unwinding its stack. In a greenlet, that frees objects without
    the GIL and crashes."""
    _python_ends.set()
    for scheduler in [*_all]:
        scheduler.close(2.0)
    compute_thread.settle(2.0)


class Scheduler:
    """Runs tasks, as many at once as there are slots. `tasks`, `waiting`: those with a slot, and
    those without one, the oldest first; `ahead`: items that new tasks may produce before they are
    read."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self.clock: Callable[[], float] = perf_counter
        self.tasks: list[Task] = []
        self.waiting: deque[Task] = deque()
        self.ahead = AHEAD
        self._awake = self._closed = False
        self._process = os.getpid()
        # Held around changes and uses of the tasks, or the wrong one might be interrupted, and one
        # might outlive the engine.
        self._changing = threading.RLock()
        _all.add(self)

    # From any thread.

    def interrupt(self, task: Task) -> None:
        """End the current pass of a task."""

    def submit(
        self,
        tokens: Sequence[int],
        work: Callable[[Task], object],
        *,
        wait: bool = True,
        owner: Hashable = None,
        on_item: Callable[[], object] | None = None,
    ) -> Task:
        """Queue a task, which ends when `work` returns.

        Args:
            tokens: of its prompt.
            wait: whether it may wait for a slot.
            owner: its reader: the number of a thread, or a reference to an asyncio task with the
                number of its thread; None for several.
            on_item: called in the scheduler's thread when there is something to read.

        Raises:
            EngineBusy: the owner would wait for itself.
            UsageError: the scheduler is closed.
        """
        if self.orphaned:
            raise UsageError(NOT_HERE)
        if _python_ends.is_set() and threading.current_thread() is not threading.main_thread():
            threading.Event().wait()  # a daemon thread, which ends with Python
        task = Task(tokens, work, wait, owner, self.ahead, self.wake, on_item)
        try:
            with self._changing:
                if self._closed:
                    raise UsageError(CLOSED)
                self.require_turn(owner)
                self.waiting.append(task)
            self.wake()
            return task
        except BaseException:  # an interrupt, perhaps, after which nobody reads it
            self.cancel(task)
            raise

    def require_turn(self, owner: Hashable) -> None:
        """Raise EngineBusy if a task of this owner would never begin: all slots have answers of
        its own, or of owners that wait as well."""
        with self._changing:
            asked = [task for task in (*self.tasks, *self.waiting) if not task.cancelled]
        waiting = {owner, *(task.owner for task in asked[self._slots :])}

        def stays(task: Task) -> bool:
            # While a thread waits, its event loop reads nothing either.
            owners = task.owner if isinstance(task.owner, tuple) else ()
            return task.owner is not None and not waiting.isdisjoint((task.owner, *owners))

        stuck = len(asked) >= self._slots and all(map(stays, asked[: self._slots]))
        if owner is not None and (stuck or compute_thread.is_current()):
            reader = "thread" if isinstance(owner, int) else "task"
            others = ", with others that wait," if len(waiting - {None}) > 1 else ""
            raise EngineBusy(
                f"This {reader}{others} is already reading {counted(self._slots, 'answer')}, "
                f"the maximum. Finish or close one first, or use another {reader}."
            )

    def cancel(self, task: Task) -> None:
        """Cancel a task while it waits, or in a separate pass. Safe in a finalizer."""
        task.cancelled = True
        if task.orphaned:
            return
        with self._changing:
            if task in self.tasks:
                self.interrupt(task)
        self.wake()

    @property
    def orphaned(self) -> bool:
        """Whether the thread that runs them is missing: after a fork, and while Python ends."""
        return sys.is_finalizing() or any(task.orphaned for task in [*self.tasks, *self.waiting])

    def close(self, seconds: float | None = None) -> None:
        """Cancel all tasks, accept no others, and wait at most `seconds` for them to end. Raises
        EngineBusy in a task."""
        if compute_thread.is_current():
            raise EngineBusy("An answer's callback cannot close the engine. Close it afterwards.")
        with self._changing:
            self._closed = True
            tasks = [*self.waiting, *self.tasks]
        for task in tasks:
            self.cancel(task)
        for task in tasks:
            task.wait(seconds)

    def leave(self, work: Callable[[], object]) -> None:
        """Run `work` in its thread, to free unreferenced resources; not in a forked process, nor
        while Python exits. Safe in a finalizer."""
        if not _python_ends.is_set() and self._process == os.getpid():
            compute_thread.post(work)

    def wake(self) -> None:
        """Schedule a turn. From any thread."""
        if self._awake:
            return
        try:
            self._awake = True
            compute_thread.post(self._turn)
        except BaseException:  # an interrupt, perhaps
            self._awake = False
            raise

    # From a task.

    def put(self, task: Task, item: object) -> None:
        """Pass an item to a task's reader, and wait for room for the next; raises Cancelled."""
        task.put(item)
        waits = len(self.tasks) > 1  # for the next pass that they share
        continues = waits or not (self.waiting or compute_thread.has_waiting_calls())
        if continues and task.read and not task.cancelled:
            return
        task.request(Wait.READER)
        self.wait(task)

    def wait(self, task: Task) -> None:
        """Run other tasks until its request is finished; raises Cancelled if it was cancelled."""
        task.since = self.clock()
        if task.cancelled:
            task.finish(error=Cancelled("Stopped on request."))
        else:
            hub = greenlet.getcurrent().parent
            assert hub is not None, "a task runs in its greenlet"
            hub.switch()
        task.waits_for = None
        task.lost += self.clock() - task.since
        if task.failed is not None:
            raise task.failed

    def time_of(self, task: Task) -> Callable[[], float]:
        """A clock that excludes the seconds spent on other tasks."""
        return lambda: self.clock() - task.lost

    # In the scheduler's thread.

    def take(self, task: Task) -> None:
        """Give a slot to a task that begins."""

    def release(self, task: Task) -> None:
        """Take back the slot of a task that has ended."""

    def _check(self, task: Task) -> None:
        """Finish a request that needs no pass."""

    def _serve(self) -> bool:
        """Run a pass for waiting tasks; False if there are none."""
        return False

    def _turn(self) -> None:
        self._awake = False
        try:
            self._run_tasks()
            if self._serve():
                self.wake()
        except BaseException as error:  # a bug here must not leave readers waiting
            for task in [*self.tasks, *self.waiting]:
                task.end(error)
            self.tasks.clear()
            self.waiting.clear()
            raise

    def _run_tasks(self) -> None:
        """Run every task until it waits; only one round while other engines wait."""
        ran = True
        while ran:
            self._begin_tasks()
            ran = False
            for task in [*self.tasks]:
                if self._ready(task):
                    self._resume(task)
                    ran = True
            if ran and compute_thread.has_waiting_calls():
                self.wake()
                return

    def _begin_tasks(self) -> None:
        for task in [*self.waiting]:
            if task.cancelled:
                self.waiting.remove(task)
                task.end(Cancelled("Stopped on request."))
            elif len(self.tasks) < self._slots:
                task.greenlet = greenlet.greenlet(partial(task.work, task))
                with self._changing:
                    self.waiting.remove(task)
                    self.tasks.append(task)
                    self.take(task)
                    if task.cancelled:  # meanwhile
                        self.interrupt(task)
            elif not task.may_wait and not any(one.cancelled for one in self.tasks):
                self.waiting.remove(task)
                why = "No more answers can be generated at once. Wait for one, or cancel it."
                task.end(EngineBusy(why))

    def _ready(self, task: Task) -> bool:
        if task.waits_for is None:
            return True
        if task.cancelled and not task.done:
            task.finish(error=Cancelled("Stopped on request."))
        elif not task.done:
            self._check(task)
        return task.done or (task.waits_for is Wait.READER and task.read)

    def _resume(self, task: Task) -> None:
        error: BaseException | None = None
        assert task.greenlet is not None
        try:
            task.greenlet.switch()
        except BaseException as raised:
            error = raised
        if task.greenlet.dead:
            task.greenlet = None
            self.release(task)
            with self._changing:
                self.tasks.remove(task)
            task.end(error)
