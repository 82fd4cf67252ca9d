"""Running work in other threads, and awaiting it in an event loop."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import TypeVar

from localspec.errors import UsageError

Result = TypeVar("Result")


async def run_in_thread(name: str, task: Callable[[], Result]) -> Result:
    """Run a task in a daemon thread, and await its result. On cancellation the task continues, and
    its result is dropped."""
    done, thread = start_thread(name, task)
    result = await asyncio.wrap_future(done)
    thread.join()  # it ends right after setting the result
    return result


def start_thread(name: str, task: Callable[[], Result]) -> tuple[Future[Result], threading.Thread]:
    """Start a task in a daemon thread; returns a future of its result, and the thread."""
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


def call_soon(loop: asyncio.AbstractEventLoop, call: Callable[..., object], *args: object) -> None:
    """Schedule a call in an event loop; nothing if the loop is closed."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(call, *args)


def running_loop() -> asyncio.AbstractEventLoop:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise UsageError(
            "An AsyncEngine needs an asyncio event loop. Elsewhere, as in trio, call load() and "
            "the engine in a thread."
        ) from None
