"""The thread that makes all passes of this process.

GNU OpenMP gives each thread that computes a team of its own, which lives as long as that thread,
asleep or not. As soon as all teams have more threads together than there are cores, libgomp takes
the machine for overcrowded: at a barrier its threads spin a hundred times and sleep, and a pass has
hundreds of barriers. On two cores one sleeping team too many made passes of 1 B parameters (scale
A) over 1, 8 and 128 tokens take 22 instead of 16 ms, 50 instead of 43 and 480 instead of 465.
Teams cannot be had for a pass each either: a new thread begins where its parent runs, and waits
there for milliseconds until the system moves it.

Handing a pass over takes 20 to 70 microseconds. So tasks that make many run in this thread, see
`localspec.scheduling.scheduler`.
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
    """Whether the caller is that thread."""
    return _thread is not None and threading.get_ident() == _thread.ident


def post(function: Callable[[], object]) -> None:
    """Have that thread call a function, which raises nothing, behind those posted before. A
    finalizer may call it."""
    _begun().calls.put(function)


def call(function: Callable[..., Result], *arguments: Any) -> Result:
    """What a function returns or raises, called in that thread. An interrupt waits for its end:
    nothing may touch what it computes on before."""
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
    """What is to be called, and what came of it once it is `over`."""

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
    """Calls functions in the order in which they come."""

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
    """In a forked process, where no thread but the forking one goes on."""
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
