"""The draft model goes on while the target verifies: PEARL, Liu et al. 2024, section 3.2."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event

import numpy as np

from localspec.decoding.sampling import Row
from localspec.drafters.draft_model import DraftModel, RowsAhead
from localspec.errors import Cancelled

FARTHEST = 8
"""Most rows read ahead."""


class ParallelReader:
    """Reads rows along the most probable tokens, as if all that is drafted were accepted."""

    def __init__(self, model: DraftModel) -> None:
        self._model = model
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="localspec-parallel")
        self._enough = Event()
        self._running: Future[RowsAhead | None] | None = None
        self._ahead: RowsAhead | None = None
        self._committed = 0  # tokens of context when it set out, and the draft behind them
        self._draft: list[int] = []
        self.native_seconds = 0.0
        """Seconds in native passes that the target's passes hid."""

    def start(self, context: Sequence[int], draft: Sequence[int]) -> None:
        """Go on from a text and a draft; the draft model belongs to this thread until `stop`."""
        self._enough.clear()
        self._committed, self._draft = len(context), list(draft)
        self._running = self._thread.submit(self._read, context)

    def stop(self) -> None:
        self._enough.set()
        running, self._running = self._running, None
        if running is not None:
            self._ahead = running.result()

    def forget(self) -> None:
        self._ahead = None

    def take(self, context: Sequence[int]) -> RowsAhead | None:
        """The rows, if the text went on as assumed; they serve once."""
        found = self._behind(context)
        self._ahead = None
        return found

    def holds(self, context: Sequence[int]) -> bool:
        return self._behind(context) is not None

    def close(self) -> None:
        self.stop()
        self._thread.shutdown()

    def _behind(self, context: Sequence[int]) -> RowsAhead | None:
        came, n = context[self._committed :], len(self._draft)
        if self._ahead is None or list(came[:n]) != self._draft:
            return None
        return self._ahead.behind(came[n:])

    def _read(self, context: Sequence[int]) -> RowsAhead | None:
        model, cache = self._model, self._model.cache
        before = cache.native_seconds
        text = list(self._draft)
        rows: list[Row] = []
        try:
            model.sync(context, text)
            of = model.to_read(context)
            known = len(of)
            while len(rows) < FARTHEST and not (rows and self._enough.is_set()):
                if model.room(context) < len(text) + 1:
                    break
                held = len(cache.tokens)
                unread = [*of[held:], *text[max(0, held - known) :]]
                row = model.read(unread)[0].copy()
                rows.append(row)
                text.append(int(row.argmax()))
        except Cancelled:
            return None  # the target's own pass says so as well
        finally:
            self.native_seconds += cache.native_seconds - before
        return RowsAhead(np.stack(rows), text[len(self._draft) : -1]) if rows else None
