"""Passes of the shared scheduler, over caches that record them."""

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import accumulate, islice
from typing import Any

import greenlet
import numpy as np
import pytest

from localspec.decoding.sampling import Rows
from localspec.errors import Cancelled, EngineBusy, NativeError
from localspec.llama import compute_thread
from localspec.llama.batch import PassPart
from localspec.scheduling import shared_scheduler
from localspec.scheduling.scheduler import Scheduler
from localspec.scheduling.shared_scheduler import SharedScheduler
from localspec.scheduling.task import AHEAD, Task, Wait
from tests.support.patches import fail_with
from tests.support.together import together

PATIENCE = 60.0  # seconds until a test that hangs fails


class RecordingCache:
    """A cache that records passes; rows hold their token, until the next pass."""

    batch, rows, cells = 512, 64, 100

    def __init__(self, answers: int = 8) -> None:
        self.answers = answers
        self.passes: list[list[int]] = []
        self.undone: list[list[int]] = []
        self.fails: Callable[[Sequence[PassPart]], Exception | None] = lambda parts: None
        self.before_pass: Callable[[], None] = lambda: None
        self._rows = np.zeros((self.batch, 1), np.float32)

    def decode(self, parts: Sequence[PassPart]) -> list[Rows]:
        self.before_pass()
        error = self.fails(parts)
        if error is not None:
            raise error
        self.passes.append([token for part in parts for token in part.tokens])
        self._rows[: len(self.passes[-1]), 0] = self.passes[-1]
        ends = accumulate(len(part.tokens) for part in parts)
        return [self._rows[end - part.outputs : end] for part, end in zip(parts, ends, strict=True)]

    def undo(self, parts: Sequence[PassPart]) -> None:
        self.undone.append([token for part in parts for token in part.tokens])

    def cancel(self) -> None: ...

    def resume(self) -> None: ...


def part(*tokens: int) -> PassPart:
    return PassPart(tokens, range(len(tokens)), ((0,),), 1)


class FakeSlot:
    def __init__(self, cells: int) -> None:
        self.cells = cells

    def preempt(self) -> None:
        self.cells = 0


class FakeSlots(SharedScheduler):
    def take(self, task: Task) -> None:
        task.slot = FakeSlot(len(task.tokens))


class Fixture:
    """A scheduler, and tasks that begin at the same time."""

    def __init__(self, slots: int = 8) -> None:
        self.draft, self.target = RecordingCache(), RecordingCache(slots)
        caches: dict[Wait, Any] = {Wait.DRAFT: self.draft, Wait.TARGET: self.target}
        self.scheduler = FakeSlots(caches)

    def decode(self, task: Task, *tokens: int, wait: Wait = Wait.TARGET) -> Rows:
        return self.scheduler.decode(task, wait, part(*tokens))[0]

    @contextmanager
    def paused_thread(self) -> Iterator[None]:
        release = threading.Event()
        compute_thread.post(lambda: release.wait(PATIENCE))
        try:
            yield
        finally:
            release.set()

    def run(self, *work: Callable[[Task], object]) -> list[list[object] | BaseException]:
        """Items or error of each task, all begun at the same time."""
        with self.paused_thread():
            tasks = [self.scheduler.submit([0], one) for one in work]
        return together([partial(read, task) for task in tasks])


def read(task: Task) -> list[object] | BaseException:
    items: list[object] = []
    try:
        items += task.items()
    except Exception as error:
        return error
    return items


def test_later_answer_joins_the_shared_passes() -> None:
    """Readers may wake the scheduler at any time, here at every item."""
    table, tasks = Fixture(), list[Task]()
    table.scheduler.ahead = 100

    def begin(token: int) -> None:
        def answer(task: Task) -> None:
            for _ in range(8):
                table.scheduler.put(task, table.decode(task, token).item())

        tasks.append(table.scheduler.submit([0], answer, on_item=table.scheduler.wake))

    def begin_the_third() -> None:
        if len(tasks) == 2:
            begin(3)

    table.target.before_pass = begin_the_third
    with table.paused_thread():
        begin(1)
        begin(2)
    assert [read(task) for task in tasks[:2]] == [[1.0] * 8, [2.0] * 8]
    assert read(tasks[2]) == [3.0] * 8
    assert table.target.passes == [[1, 2], *[[1, 2, 3]] * 7, [3]]


def test_draft_passes_come_first_and_are_shared() -> None:
    table = Fixture()

    def answer(task: Task, number: int) -> None:
        for level in range(number):
            table.decode(task, 10 * level + number, wait=Wait.DRAFT)
        table.decode(task, number)

    table.run(*(lambda task, n=n: answer(task, n) for n in range(3)))
    assert table.draft.passes == [[1, 2], [12]]
    assert [sorted(found) for found in table.target.passes] == [[0, 1, 2]]


def test_unread_answer_does_not_block_others() -> None:
    table = Fixture()
    others: list[int] = []

    def unread(task: Task) -> None:
        for token in range(100, 200):
            table.decode(task, token)
            table.scheduler.put(task, token)

    def busy(task: Task) -> None:
        for token in range(10):
            table.decode(task, token)
        others.append(len(table.scheduler.others(task)))

    with table.paused_thread():
        paused = table.scheduler.submit([0], unread)
        going = table.scheduler.submit([0], busy)
    assert read(going) == []
    made = [token for found in table.target.passes for token in found]
    assert [token for token in made if token < 100] == [*range(10)]
    assert len([token for token in made if token >= 100]) == AHEAD
    assert others == [0]
    assert len([*islice(paused.items(), 50)]) == 50, "it continues once it is read"
    table.scheduler.cancel(paused)
    paused.wait()


def test_without_lookahead_items_are_made_on_demand() -> None:
    table, made = Fixture(), list[int]()
    table.scheduler.ahead = 0

    def counts(task: Task) -> None:
        for number in range(100):
            made.append(number)
            table.scheduler.put(task, number)

    task = table.scheduler.submit([0], counts)
    compute_thread.call(lambda: None)
    for number, item in enumerate(task.items()):
        compute_thread.call(lambda: None)
        assert made == [*range(number + 1)]
        assert item == number
        if number == 20:
            break
    table.scheduler.cancel(task)
    task.wait()


def test_task_after_a_cancelled_one_begins() -> None:
    """Both are submitted, and the first one cancelled, before the scheduler runs."""
    table = Fixture(slots=1)
    with table.paused_thread():
        first, second = (table.scheduler.submit([0], lambda task: task.put(1)) for _ in range(2))
        table.scheduler.cancel(first)
    compute_thread.call(lambda: None)  # after the scheduler ran
    assert second.over
    assert read(second) == [1]
    assert isinstance(first.error, Cancelled)


def test_failing_part_does_not_affect_the_others() -> None:
    table = Fixture()

    def fails(parts: Sequence[PassPart]) -> Exception | None:
        return NativeError("bad") if any(1 in one.tokens for one in parts) else None

    table.target.fails = fails
    got = table.run(*(lambda task, n=n: task.put(table.decode(task, n).item()) for n in range(3)))
    assert got[0] == [0.0]
    assert isinstance(got[1], NativeError)
    assert got[2] == [2.0]
    assert table.target.undone == [[0, 1, 2], [1]]


def test_cells_of_a_paused_answer_are_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_scheduler, "PAUSED", 1e-2)
    run = threading.Timer.run  # whose thread may end after the turn that it causes
    monkeypatch.setattr(threading.Timer, "run", lambda t: (run(t), compute_thread.call(int)))
    table = Fixture()

    def unread(task: Task) -> None:
        while True:
            table.scheduler.put(task, 0)

    with table.paused_thread():
        paused = table.scheduler.submit([0] * 80, unread)
        waiting = table.scheduler.submit([], lambda task: table.scheduler.wait_for_room(task, 40))
    assert read(waiting) == []
    assert paused.slot is not None
    assert paused.slot.cells == 0
    table.scheduler.cancel(paused)
    paused.wait()


def test_direct_passes_wait_for_readers_of_rows() -> None:
    """Rows are views, which the next pass overwrites. The measuring task begins during a pass."""
    table, order = Fixture(), list[str]()

    def measure(task: Task) -> None:
        with table.scheduler.direct():
            order.append("measured")
            assert table.scheduler.chunk(task) == RecordingCache.batch
            table.decode(task, 7, 8)

    def use_rows(task: Task) -> None:
        for token in (1, 2):
            table.decode(task, token)
            order.append("used")

    def begin() -> None:
        if not table.target.passes:
            waiting.append(table.scheduler.submit([0], measure))

    waiting: list[Task] = []
    table.target.before_pass = begin
    assert table.run(use_rows, use_rows) == [[], []]
    assert read(waiting[0]) == []
    assert order == ["used", "used", "measured", "used", "used"]
    assert table.target.passes == [[1, 1], [7, 8], [2, 2]]


@pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="POSIX")
def test_reader_that_waits_handles_signals_of_other_threads() -> None:
    task = Task((), lambda _: None)
    kill, give_up = (
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)),
        threading.Timer(10.0, task.end, (None,)),
    )

    def wait_in_vain() -> None:
        kill.start()
        give_up.start()
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # here, but not in those
        next(task.items())

    try:
        with pytest.raises(KeyboardInterrupt):
            wait_in_vain()
        assert not task.over
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        give_up.cancel()


def test_task_that_is_cancelled_while_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted: list[Task] = []
    scheduler, make = Scheduler(1), greenlet.greenlet
    monkeypatch.setattr(scheduler, "interrupt", interrupted.append)

    def cancelled(run: partial[object]) -> greenlet.greenlet:
        scheduler.cancel(run.args[0])
        return make(run)

    monkeypatch.setattr(greenlet, "greenlet", cancelled)
    task = scheduler.submit((), lambda _: None)
    task.wait(PATIENCE)
    assert interrupted == [task]


def test_close_ends_a_task_that_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler, make = Scheduler(1), greenlet.greenlet
    closing = threading.Thread(target=scheduler.close, args=(0.0,))

    def close(run: partial[object]) -> greenlet.greenlet:
        closing.start()
        closing.join(PATIENCE)
        return make(run)

    monkeypatch.setattr(greenlet, "greenlet", close)
    task = scheduler.submit((), lambda task: scheduler.put(task, 0))
    task.wait(PATIENCE)
    assert isinstance(task.error, Cancelled)


def test_readers_of_all_answers_cannot_wait_for_each_other() -> None:
    table = Fixture(slots=2)
    with table.paused_thread():
        for owner in (1, 2, 1):
            table.scheduler.submit([0], lambda _: None, owner=owner)
        with pytest.raises(EngineBusy, match="thread, with others that wait, is already reading 2"):
            table.scheduler.submit([0], lambda _: None, owner=2)


def test_error_at_the_end_of_a_task_reaches_its_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Fixture()
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    monkeypatch.setattr(table.scheduler, "release", fail_with(ZeroDivisionError()))
    assert isinstance(table.run(lambda _: None)[0], ZeroDivisionError)
    compute_thread.call(int)  # after the hook


def test_interrupt_while_a_task_is_queued(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: object) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    scheduler = Scheduler(1)
    monkeypatch.setattr(compute_thread, "post", interrupted)
    with pytest.raises(KeyboardInterrupt):
        scheduler.submit((), lambda _: None)
    task = scheduler.submit((), lambda _: None)
    task.wait(PATIENCE)
    assert task.over
    assert not scheduler.waiting
