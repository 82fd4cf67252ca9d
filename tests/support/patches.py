"""Functions that stand in for others: they record calls, or fail."""

from __future__ import annotations

from collections.abc import Callable
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
