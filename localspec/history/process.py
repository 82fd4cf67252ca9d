"""The id of the process that writes an answer, by which others check whether it is alive."""

import os
from functools import lru_cache

_TOLERANCE = 1.0
"""Seconds by which two readings of one start time may differ: clocks are adjusted."""


def this_process() -> str:
    """This process's PID and start time."""
    return _identify(os.getpid())


def is_alive(writer: str | None) -> bool:
    import psutil

    if writer == this_process():
        return True
    try:
        number, start = (writer or "").split("@")
        process = psutil.Process(int(number))
        # A killed process keeps its PID until its parent waits for it.
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        return abs(process.create_time() - float(start)) <= _TOLERANCE
    except psutil.AccessDenied:
        return True
    except (psutil.Error, ValueError, OverflowError):
        return False


@lru_cache(maxsize=1)  # a forked child has another PID
def _identify(number: int) -> str:
    import psutil

    return f"{number}@{psutil.Process(number).create_time():.2f}"
