"""A few daemon threads that do tasks in order. Unlike `concurrent.futures`, the program does not
wait for them when it ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeVar

Result = TypeVar("Result")
Task = Callable[[], object]


class WorkerThreads:
    """Threads that begin when there is something to do, and end when closed or dropped. Tasks raise
    nothing.

    Args:
        most: threads at a time.
    """

    def __init__(self, name: str, most: int) -> None:
        self._name, self._most = name, most
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        self._state = threading.Lock()
        self._undone = [0]  # in a list: a thread that knew of us would keep us alive
        self._threads: list[threading.Thread] = []

    def submit(self, task: Task) -> None:
        with self._state:
            self._undone[0] += 1
            if len(self._threads) < min(self._undone[0], self._most):
                arguments = (self._tasks, self._undone, self._state)
                thread = threading.Thread(
                    target=_work, args=arguments, name=self._name, daemon=True
                )
                self._threads.append(thread)
                thread.start()
        self._tasks.put(task)

    def close(self) -> None:
        """Do what was submitted, end the threads and wait for that."""
        self._finish()
        for thread in self._threads:
            thread.join()

    def _finish(self) -> None:
        for _ in self._threads:
            self._tasks.put(None)

    def __del__(self) -> None:
        self._finish()


def _work(tasks: SimpleQueue[Task | None], undone: list[int], state: threading.Lock) -> None:
    while (task := tasks.get()) is not None:
        task()
        del task  # and all that hangs on it, while there is nothing to do
        with state:
            undone[0] -= 1


async def off_the_loop(name: str, task: Callable[[], Result]) -> Result:
    """What a task returns or raises in a thread of its own. On cancellation the task goes on, and
    its result is dropped."""
    threads: list[threading.Thread] = []

    def begin(work: Task) -> None:
        threads.append(threading.Thread(target=work, name=name, daemon=True))
        threads[0].start()

    result = await awaited(begin, task)
    threads[0].join()  # telling was the last that it did
    return result


async def awaited(begin: Callable[[Task], object], task: Callable[[], Result]) -> Result:
    """What a task returns or raises in another thread, where `begin` has it done."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Result] = loop.create_future()

    def tell(result: Result | None, error: BaseException | None) -> None:
        if done.cancelled():
            return
        if error is None:
            done.set_result(result)  # type: ignore[arg-type]
        else:
            done.set_exception(error)

    def work() -> None:
        result, error = None, None
        try:
            result = task()
        except BaseException as raised:
            error = raised
        call(loop, tell, result, error)

    begin(work)
    try:
        await asyncio.wait([done])
    finally:
        done.cancel()  # unless it is done: nobody asks for what comes
    return done.result()


def call(loop: asyncio.AbstractEventLoop, function: Callable[..., object], *args: object) -> bool:
    """Have an event loop call something; False where it is closed."""
    try:
        loop.call_soon_threadsafe(function, *args)
    except RuntimeError:
        return False
    return True
