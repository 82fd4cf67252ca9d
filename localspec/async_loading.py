"""`load_async`: opens an engine for an asyncio program. Other threads import what takes long."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from localspec.errors import Cancelled
from localspec.typed import convert
from localspec.worker_threads import call_soon, running_loop, start_thread

if TYPE_CHECKING:
    from typing_extensions import Unpack  # in the standard library since 3.11

    from localspec.async_engine import AsyncEngine
    from localspec.drafters.options import Drafting
    from localspec.keywords import LoadKeywords
    from localspec.llama.options import ModelOptions
    from localspec.loading.draft import Reference


def load_async(
    model: Reference | None = None,
    *,
    draft: Reference | None = "auto",
    options: ModelOptions | None = None,
    drafting: Drafting | None = None,
    wait: bool = True,
    progress: Callable[[float], None] | None = None,
    offline: bool | None = None,
    **keywords: Unpack[LoadKeywords],
) -> Loading:
    """Open a model: `engine = await load_async(…)`, or `async with load_async(…) as engine`.

    Arguments and errors are those of `localspec.load`; `progress` is called in the event loop. A
    cancelled task is not kept waiting: loading stops at its next report of progress.
    """

    def opening(report: Callable[[float], None]) -> AsyncEngine:
        from localspec.async_engine import AsyncEngine
        from localspec.loading.load import load

        engine = load(
            model,
            draft=draft,
            options=options,
            drafting=drafting,
            wait=wait,
            progress=report,
            offline=offline,
            **keywords,
        )
        return AsyncEngine(engine)

    return Loading(opening, progress)


class Loading:
    """An engine that is being opened: await it, or enter it with `async with`."""

    def __init__(
        self, opening: Callable[[Callable[[float], None]], AsyncEngine], progress: Any
    ) -> None:
        """`opening` loads the engine; it is passed a function for progress. `progress`: the
        caller's, or None."""
        self._opening, self._progress = opening, convert("progress", progress, Callable | None)
        self._engine: AsyncEngine | None = None

    def __await__(self) -> Generator[Any, None, AsyncEngine]:
        return self._opened().__await__()

    async def __aenter__(self) -> AsyncEngine:
        self._engine = await self._opened()
        return self._engine

    async def __aexit__(self, *_: object) -> None:
        assert self._engine is not None
        await self._engine.aclose()

    async def _opened(self) -> AsyncEngine:
        loop, given_up = running_loop(), threading.Event()

        def report(fraction: float) -> None:
            if given_up.is_set():
                raise Cancelled("Stopped while the model was loading.")
            if self._progress is not None:
                call_soon(loop, self._progress, fraction)

        loaded, thread = start_thread("localspec-load", lambda: self._opening(report))

        def free() -> None:
            """Close the engine, which is no longer awaited."""
            if loaded.exception() is None:
                loaded.result().engine.close()

        try:
            engine = await asyncio.wrap_future(loaded)
        except asyncio.CancelledError:
            given_up.set()
            start_thread("localspec-close", free)
            raise
        thread.join()
        return engine
