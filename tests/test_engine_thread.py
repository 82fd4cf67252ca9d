"""The thread of an engine, with tasks that wait for the test."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from localspec.engine_thread import EngineThread
from localspec.errors import Cancelled

PATIENCE = 60.0
"""Seconds until a test gives up."""


class Endless:
    """A stream that only a cancellation ends."""

    def __init__(self) -> None:
        self.reached, self.cancelled = threading.Event(), threading.Event()

    def cancel(self) -> None:
        self.cancelled.set()

    def run(self) -> None:
        self.reached.set()
        assert self.cancelled.wait(PATIENCE)


class Bench:
    """A thread, and what has come of its tasks."""

    def __init__(self) -> None:
        self.thread = EngineThread("test-engine")
        self.done: list[str] = []
        self.errors: list[BaseException] = []

    def note(self, name: str) -> None:
        """A task that is noted, unless it was cancelled."""

        def task() -> None:
            self.thread.require_going_on(f"{name} is cancelled")
            self.done.append(name)

        self.thread.submit(task, failed=self.errors.append)

    def stream(self, stream: Endless) -> None:
        """A task that is in the middle of a stream."""

        def task() -> None:
            with self.thread.cancels(stream):
                stream.run()

        self.thread.submit(task, failed=self.errors.append)

    def end(self) -> None:
        self.thread.finish()
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive()

    @property
    def sentences(self) -> list[str]:
        return [str(error) for error in self.errors]


@contextmanager
def at_a_bench(*, started: bool = True) -> Iterator[Bench]:
    bench = Bench()
    if started:
        bench.thread.start()
    yield bench
    bench.end()
    assert "test-engine" not in [thread.name for thread in threading.enumerate()]


def test_tasks_are_done_in_their_order() -> None:
    with at_a_bench() as bench:
        for name in "abc":
            bench.note(name)
        bench.end()
        assert bench.done == ["a", "b", "c"]


def test_a_cancellation_before_the_start_is_not_lost() -> None:
    with at_a_bench(started=False) as bench:
        bench.note("a")
        bench.thread.cancel()
        bench.thread.start()
        bench.end()
        assert bench.done == []
        assert bench.sentences == ["a is cancelled"]
        assert isinstance(bench.errors[0], Cancelled)


def test_a_cancellation_reaches_what_runs_and_what_waits_and_nothing_later() -> None:
    with at_a_bench() as bench:
        stream = Endless()
        bench.stream(stream)
        bench.note("waiting")
        assert stream.reached.wait(PATIENCE)
        bench.thread.cancel()
        bench.note("later")
        bench.end()
        assert stream.cancelled.is_set()
        assert bench.sentences == ["waiting is cancelled"]
        assert bench.done == ["later"]


def test_a_stream_that_begins_after_the_cancellation_is_cancelled_at_once() -> None:
    with at_a_bench() as bench:
        begun, cancelled, stream = threading.Event(), threading.Event(), Endless()

        def task() -> None:
            begun.set()
            assert cancelled.wait(PATIENCE)
            with bench.thread.cancels(stream):
                stream.run()

        bench.thread.submit(task, failed=bench.errors.append)
        assert begun.wait(PATIENCE)
        bench.thread.cancel()
        cancelled.set()
        bench.end()
        assert stream.cancelled.is_set()
        assert bench.errors == []


def test_a_stream_that_is_over_is_left_alone() -> None:
    with at_a_bench() as bench:
        over, waiting = Endless(), Endless()
        over.cancelled.set()
        bench.stream(over)
        bench.thread.submit(waiting.run, failed=bench.errors.append)
        assert waiting.reached.wait(PATIENCE)
        over.cancelled.clear()
        bench.thread.cancel()
        waiting.cancel()
        bench.end()
        assert not over.cancelled.is_set()
        assert bench.errors == []


@pytest.mark.parametrize("error", [RuntimeError("odd"), KeyboardInterrupt(), SystemExit(3)])
def test_whatever_a_task_raises_is_handed_over_and_the_next_one_is_done(
    error: BaseException,
) -> None:
    with at_a_bench() as bench:

        def task() -> None:
            raise error

        bench.thread.submit(task, failed=bench.errors.append)
        bench.note("next")
        bench.end()
        assert bench.errors == [error]
        assert bench.done == ["next"]
