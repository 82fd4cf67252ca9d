"""The thread that makes all passes of this process.

GNU OpenMP keeps a team of threads per computing thread. Once all teams together have more
threads than there are cores, libgomp spins less at barriers, and every pass slows down.
Handing over a pass takes 20 to 70 µs, so tasks of many passes run in this thread
(`localspec.scheduling.scheduler`).
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

Result = TypeVar("Result")


def is_current() -> bool:
    return _thread is not None and threading.get_ident() == _thread.ident


def post(function: Callable[[], object]) -> None:
    """Queue a function that raises nothing. A finalizer may call this."""
    _begun().calls.put(function)


def call(function: Callable[..., Result], *arguments: Any) -> Result:
    """Call a function in that thread and wait. An interrupt is raised once it has returned."""
    if is_current():
        return function(*arguments)
    one: _Call = _Call(function, arguments)
    interrupt = None
    _begun().calls.put(one)
    while not one.over:
        try:
            one.waits.acquire()
        except BaseException as error:  # noqa: PERF203 - once, if at all
            interrupt = error
    if interrupt is not None:
        raise interrupt
    if one.error is not None:
        raise one.error
    result: Result = one.result
    return result


class _Call:
    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self._function, self._arguments = function, arguments
        self.result: Any = None
        self.error: BaseException | None = None
        self.over = False
        self.waits = threading.Lock()
        self.waits.acquire()

    def __call__(self) -> None:
        try:
            self.result = self._function(*self._arguments)
        except BaseException as error:
            self.error = error
        self.over = True
        self.waits.release()


class _ComputeThread:
    def __init__(self) -> None:
        self.calls: SimpleQueue[Callable[[], object]] = SimpleQueue()
        thread = threading.Thread(target=self._work, name="localspec-compute", daemon=True)
        thread.start()
        self.ident = thread.ident

    def _work(self) -> None:
        while True:
            function = self.calls.get()
            try:
                function()
            except Exception:
                threading.excepthook(
                    threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread()))
                )
            del function  # what it holds is not ours to keep until the next one comes


_thread: _ComputeThread | None = None
_beginning = threading.RLock()


def _forget() -> None:
    global _thread
    _thread = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def _begun() -> _ComputeThread:
    global _thread
    with _beginning:
        if _thread is None:
            _thread = _ComputeThread()
        return _thread
