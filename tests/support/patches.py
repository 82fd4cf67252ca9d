"""Functions that stand in for others, which record calls or fail, and full disks."""

import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest


def record_calls(patch: pytest.MonkeyPatch, owner: object, name: str) -> list[tuple[Any, ...]]:
    """Record the positional arguments of all calls of `owner.name`, which works as before."""
    calls: list[tuple[Any, ...]] = []
    original = getattr(owner, name)

    def recorded(*arguments: Any, **keywords: Any) -> Any:
        calls.append(arguments)
        return original(*arguments, **keywords)

    patch.setattr(owner, name, recorded)
    return calls


def fail_with(
    error: BaseException, after: int = 0, before: Callable[..., Any] = lambda *_, **__: None
) -> Callable[..., Any]:
    """A function that raises from the call after the first `after` ones, which call `before`."""
    calls = 0

    def fail(*arguments: Any, **keywords: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > after:
            raise error
        return before(*arguments, **keywords)

    return fail


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Limit the size of files, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
