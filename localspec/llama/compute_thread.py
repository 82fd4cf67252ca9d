"""The thread that runs all passes of this process.

GNU OpenMP keeps a team of threads per computing thread, and spins less at barriers once all
teams together have more threads than there are cores. Handing over a pass takes 20 to 70 µs, so
tasks of many passes run in this thread (`localspec.scheduling.scheduler`).
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

Result = TypeVar("Result")
_PAUSE = 0.1  # seconds without work after which the thread is idle


def is_current() -> bool:
    return _thread is not None and threading.get_ident() == _thread.ident


def has_waiting_calls() -> bool:
    """Whether calls are queued after the running one."""
    return _thread is not None and not _thread.calls.empty()


def post(function: Callable[[], object]) -> None:
    """Queue a function that raises nothing, without waiting. Finalizers may call this."""
    _running_thread().calls.put(function)


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
    """Wait until what is queued is done, or so long."""
    if _thread is not None:
        done = threading.Event()
        post(done.set)
        done.wait(seconds)


def when_idle(step: Callable[[], object]) -> None:
    """Call `step` repeatedly while the thread is idle, until it returns a false value. Each call
    may take milliseconds at most, as queued calls wait for it."""
    global _idle_step
    _idle_step = step
    post(_no_step)  # the thread may be waiting


class _ComputeThread:
    def __init__(self) -> None:
        self.calls: SimpleQueue[Callable[[], object]] = SimpleQueue()
        thread = threading.Thread(target=self._work, name="localspec-compute", daemon=True)
        thread.start()
        self.ident = thread.ident

    def _work(self) -> None:
        while True:
            function = self._next()
            try:
                function()
            except Exception:
                threading.excepthook(
                    threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread()))
                )
            del function  # otherwise its objects would live until the next call

    def _next(self) -> Callable[[], object]:
        try:
            return self.calls.get(timeout=_PAUSE)
        except Empty:
            while self.calls.empty() and _idle_step():
                pass
            return self.calls.get()


def _no_step() -> bool:
    return False


_idle_step: Callable[[], object] = _no_step

_thread: _ComputeThread | None = None
_start_lock = threading.RLock()


def _reset_after_fork() -> None:
    global _thread, _start_lock
    _thread, _start_lock = None, threading.RLock()  # another thread may have held it


if hasattr(os, "register_at_fork"):  # threads do not survive a fork
    os.register_at_fork(after_in_child=_reset_after_fork)


def _running_thread() -> _ComputeThread:
    global _thread
    with _start_lock:
        if _thread is None:
            _thread = _ComputeThread()
        return _thread
