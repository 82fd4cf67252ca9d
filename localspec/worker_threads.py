"""Work in other threads, awaited in an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

Result = TypeVar("Result")


async def off_the_loop(name: str, task: Callable[[], Result]) -> Result:
    """What a task returns or raises in a thread of its own, for which the program does not wait
    when it ends. On cancellation the task goes on, and its result is dropped."""
    done, thread = in_a_thread(name, task)
    result = await asyncio.wrap_future(done)
    thread.join()  # telling was the last that it did
    return result


def in_a_thread(name: str, task: Callable[[], Result]) -> tuple[Future[Result], threading.Thread]:
    """The same without an event loop."""
    done: Future[Result] = Future()
    done.set_running_or_notify_cancel()

    def work() -> None:
        try:
            result = task()
        except BaseException as error:
            done.set_exception(error)
        else:
            done.set_result(result)

    thread = threading.Thread(target=work, name=name, daemon=True)
    thread.start()
    return done, thread


def call(loop: asyncio.AbstractEventLoop, function: Callable[..., object], *args: object) -> bool:
    """Have an event loop call something; False where it is closed."""
    try:
        loop.call_soon_threadsafe(function, *args)
    except RuntimeError:
        return False
    return True
