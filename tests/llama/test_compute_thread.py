"""The compute thread, which makes all passes of a process."""

import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from signal import SIGINT
from time import sleep

import pytest

from localspec import ModelOptions
from localspec.llama import compute_thread, library
from localspec.llama.model import Model
from localspec.llama.native_context import NativeContext

pytestmark = pytest.mark.nightly


def test_interrupt_waits_for_the_end_of_a_pass() -> None:
    over: list[bool] = []
    asks = threading.get_ident()

    def slow(interrupted: Callable[[], object]) -> None:
        interrupted()
        sleep(0.3)
        over.append(True)

    with pytest.raises(KeyboardInterrupt):  # in this thread, which waits
        compute_thread.call(slow, lambda: signal.pthread_kill(asks, SIGINT))
    assert over == [True]
    with pytest.raises(ZeroDivisionError):
        compute_thread.call(divmod, 7, 0)
    assert compute_thread.call(divmod, 7, 2) == (3, 1), "the next call works"


def test_interrupt_while_a_context_is_made_is_not_lost(
    monkeypatch: pytest.MonkeyPatch, target_path: Path
) -> None:
    """llama.cpp writes to its log then, by a callback in which ctypes drops exceptions."""
    main, options = threading.get_ident(), ModelOptions(context=256)
    interrupts = [SIGINT]

    def log(*_: object) -> None:
        if interrupts:
            signal.pthread_kill(main, interrupts.pop())

    with Model(target_path, options) as model:
        monkeypatch.setattr(library.logger, "log", log)
        with pytest.raises(KeyboardInterrupt):
            NativeContext(model, options, rows=1)
        NativeContext(model, options, rows=1).close()


def test_queued_work_precedes_idle_work() -> None:
    begun, go_on = threading.Event(), threading.Event()
    steps: list[int] = []

    def step() -> bool:
        steps.append(len(steps))
        begun.set()
        go_on.wait(60)
        return len(steps) < 5

    compute_thread.when_idle(step)
    assert begun.wait(60), "the thread is idle"
    made: list[int] = []
    compute_thread.post(lambda: made.append(len(steps)))
    go_on.set()
    compute_thread.call(divmod, 7, 2)
    assert made == [1]
    compute_thread.when_idle(lambda: False)


GREENLETS = """
import queue, threading
from greenlet import getcurrent, greenlet

class Yielding(queue.SimpleQueue):
    def get(self, *arguments, **more):
        while (parent := getcurrent().parent) and self.empty():
            parent.switch()
        return super().get(*arguments, **more)

new = "_start_new_thread"  # until Python 3.12
name = new if hasattr(threading, new) else "_start_joinable_thread"
start_thread = getattr(threading, name)

def start(function, *arguments, **more):
    if function.__self__.name != "localspec-compute":
        return start_thread(function, *arguments, **more)
    greenlet(function).switch()

queue.SimpleQueue = Yielding
setattr(threading, name, start)
import localspec
localspec.load(context=256, threads=1)
"""
"""A thread replaced by a greenlet, as gevent and eventlet do."""


def test_threads_that_are_greenlets_are_refused() -> None:
    command = [sys.executable, "-c", GREENLETS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stderr.splitlines()[-1].startswith("localspec.errors.UsageError: gevent"), done
