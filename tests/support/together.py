"""Running functions in parallel."""

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

Result = TypeVar("Result")
PATIENCE = 300.0  # seconds until a test that hangs fails


def together(work: Sequence[Callable[[], Result]]) -> list[Result | BaseException]:
    """The result or error of each function, all started at the same time in separate threads."""
    results: dict[int, Result | BaseException] = {}
    start = threading.Barrier(len(work))

    def run(number: int) -> None:
        try:
            start.wait(PATIENCE)
            results[number] = work[number]()
        except BaseException as error:
            results[number] = error

    threads = [
        threading.Thread(target=run, args=(number,), daemon=True) for number in range(len(work))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive(), "an answer never ends"
    return [results[number] for number in range(len(work))]
