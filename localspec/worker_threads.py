"""Work in other threads, awaited in an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")
Task = Callable[[], object]


async def off_the_loop(name: str, task: Callable[[], Result]) -> Result:
    """What a task returns or raises in a thread of its own, for which the program does not wait
    when it ends. On cancellation the task goes on, and its result is dropped."""
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
