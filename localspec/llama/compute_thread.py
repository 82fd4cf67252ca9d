"""One thread that makes the passes of this process, once answers of several threads share them.

GNU OpenMP gives each thread that computes a team of its own, which lives as long as that thread,
asleep or not. As soon as all teams have more threads together than there are cores, libgomp takes
the machine for overcrowded: at a barrier its threads spin a hundred times and sleep, and a pass has
hundreds of barriers. On two cores one sleeping team too many made passes of 1 B parameters (scale
A) over 1, 8 and 128 tokens take 22 instead of 16 ms, 50 instead of 43 and 480 instead of 465.
Teams cannot be had for a pass each either: a new thread begins where its parent runs, and waits
there for milliseconds until the system moves it.

Handing a pass over takes 20 to 70 microseconds, so an engine for one answer at a time does without:
there a thread gives its team up when its answer is over, as the next one may come from another.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import llama_cpp

_SOFT = 1  # omp_pause_soft: nothing but the threads is given up
_release_team = getattr(llama_cpp.llama_cpp._lib, "omp_pause_resource_all", None)
"""None where llama.cpp is built without OpenMP; its own threads do not count each other."""

_thread: _ComputeThread | None = None
_beginning = threading.Lock()


def begin() -> None:
    """From now on, and as long as the process lives, have one thread make all passes; harmless when
    repeated."""
    global _thread
    with _beginning:
        if _thread is None and _release_team is not None:
            _thread = _ComputeThread()


def rest() -> None:
    """Called by a thread that has made passes, when there are none to be made for a while. Where
    three threads of a pool answered in turn, passes of 1.5 B parameters took 33.7 ms instead of
    22.4, and that of a prompt twice as long as it does."""
    if _thread is None and _release_team is not None and threading.active_count() > 1:
        _release_team(_SOFT)


def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """A function that computes, called in that thread, if there is one. An interrupt waits for its
    end: nothing may touch what it computes on before."""
    thread = _thread
    return function(*arguments) if thread is None else thread.call(function, arguments)


class _Call:
    """What is to be called, and what came of it once it is `over`."""

    __slots__ = ("arguments", "error", "function", "over", "result", "waits")

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self.function, self.arguments = function, arguments
        self.result: Any = None
        self.error: BaseException | None = None
        self.over = False
        self.waits = threading.Lock()
        self.waits.acquire()


class _ComputeThread:
    """Calls functions in the order in which they come."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[_Call] = SimpleQueue()
        self._rested = threading.local()
        threading.Thread(target=self._work, name="localspec-compute", daemon=True).start()

    def call(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        if not hasattr(self._rested, "since"):
            # This thread may have made passes by itself before.
            assert _release_team is not None
            _release_team(_SOFT)
            self._rested.since = True
        one, interrupt = _Call(function, arguments), None
        self._calls.put(one)
        while not one.over:
            try:
                one.waits.acquire()
            except BaseException as error:  # noqa: PERF203 - once, if at all
                interrupt = error
        if interrupt is not None:
            raise interrupt
        if one.error is not None:
            raise one.error
        return one.result

    def _work(self) -> None:
        while True:
            one = self._calls.get()
            try:
                one.result = one.function(*one.arguments)
            except BaseException as error:
                one.error = error
            one.over = True
            one.waits.release()
            del one  # what it holds is not ours to keep until the next one comes
