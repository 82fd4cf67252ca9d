"""The thread that runs all passes of this process.

GNU OpenMP keeps a team of threads per computing thread, and spins less at barriers once all
teams together have more threads than there are cores. Handing a pass to it takes 20 to 70 µs, so
tasks of many passes run in this thread (`localspec.scheduling.scheduler`).
"""

import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from localspec.errors import UsageError

Result = TypeVar("Result")
_PAUSE = 0.1  # seconds without work after which the thread is idle


def is_current() -> bool:
    return threading.get_ident() == _ident


def has_waiting_calls() -> bool:
    """Whether calls are queued after the running one."""
    return not _calls.empty()


def post(function: Callable[[], object]) -> None:
    """Queue a function that raises nothing, without waiting. Finalizers may call this."""
    global _ident
    with _start_lock:
        if _ident is None:
            thread = threading.Thread(target=_work, name="localspec-compute", daemon=True)
            thread.start()
            if thread.native_id == threading.get_native_id():
                raise UsageError(
                    "gevent or eventlet has replaced Python's threads, which localspec needs. "
                    "Leave out threads and queues: patch_all(thread=False, queue=False)."
                )
            _ident = thread.ident
    _calls.put(function)


def call(function: Callable[..., Result], *arguments: Any) -> Result:
    """Call a function in that thread and wait. An interrupt is raised once it has returned."""
    if is_current():
        return function(*arguments)
    future: Future[Result] = Future()

    def job() -> None:
        try:
            future.set_result(function(*arguments))
        except BaseException as error:
            future.set_exception(error)

    post(job)
    interrupt = None
    while not future.done():
        try:
            future.exception()  # waits
        except BaseException as error:  # noqa: PERF203 - once, if at all
            interrupt = error
    if interrupt is not None:
        raise interrupt
    return future.result()


def settle(seconds: float) -> None:
    """Wait until all queued calls are done, or for at most `seconds`."""
    if _ident is not None:
        done = threading.Event()
        post(done.set)
        done.wait(seconds)


def when_idle(step: Callable[[], object]) -> None:
    """Call `step` repeatedly while the thread is idle, until it returns a false value. Each call
    may take at most milliseconds, as queued calls wait for it."""
    global _idle_step
    _idle_step = step
    post(_no_step)  # the thread may be waiting


def _work() -> None:
    while True:
        function = _next()
        try:
            function()
        except Exception:
            threading.excepthook(
                threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread()))
            )
        del function  # otherwise its objects would live until the next call


def _next() -> Callable[[], object]:
    try:
        return _calls.get(timeout=_PAUSE)
    except Empty:
        while _calls.empty() and _idle_step():
            pass
        return _calls.get()


def _no_step() -> bool:
    return False


_calls: SimpleQueue[Callable[[], object]] = SimpleQueue()
_ident: int | None = None
_idle_step: Callable[[], object] = _no_step
_start_lock = threading.RLock()


def _reset_after_fork() -> None:  # threads do not survive it
    global _calls, _ident, _start_lock
    # Another thread may have held the lock.
    _calls, _ident, _start_lock = SimpleQueue(), None, threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)
