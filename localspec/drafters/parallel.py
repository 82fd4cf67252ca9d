"""Drafting while the target verifies: PEARL, Liu et al. 2024, section 3.2."""

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
    """Reads ahead along the most probable tokens, as if the whole draft were accepted."""

    def __init__(self, model: DraftModel) -> None:
        self._model = model
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="localspec-parallel")
        self._stopping = Event()
        self._running: Future[RowsAhead | None] | None = None
        self._ahead: RowsAhead | None = None
        self._committed = 0  # length of the context at the start, and the draft after it
        self._draft: list[int] = []
        self.native_seconds = 0.0
        """Seconds in native passes that ran in parallel to the target."""

    def start(self, context: Sequence[int], draft: Sequence[int]) -> None:
        """Begin after a text and a draft; only this thread uses the draft model until `stop`."""
        self._stopping.clear()
        self._committed, self._draft = len(context), list(draft)
        self._running = self._thread.submit(self._read, context)

    def stop(self) -> None:
        self._stopping.set()
        running, self._running = self._running, None
        if running is not None:
            self._ahead = running.result()

    def forget(self) -> None:
        self._ahead = None

    def take(self, context: Sequence[int]) -> RowsAhead | None:
        """Return the rows if the text continued as assumed, and forget them."""
        found = self._rows_after(context)
        self._ahead = None
        return found

    def holds(self, context: Sequence[int]) -> bool:
        return self._rows_after(context) is not None

    def close(self) -> None:
        self.stop()
        self._thread.shutdown()

    def _rows_after(self, context: Sequence[int]) -> RowsAhead | None:
        came, n = context[self._committed :], len(self._draft)
        if self._ahead is None or list(came[:n]) != self._draft:
            return None
        return self._ahead.after(came[n:])

    def _read(self, context: Sequence[int]) -> RowsAhead | None:
        model, cache = self._model, self._model.cache
        before = cache.native_seconds
        text = list(self._draft)
        rows: list[Row] = []
        try:
            model.sync(context, text)
            excerpt = model.to_read(context)
            known = len(excerpt)
            while len(rows) < FARTHEST and not (rows and self._stopping.is_set()):
                if model.room(context) < len(text) + 1:
                    break
                held = len(cache.tokens)
                unread = [*excerpt[held:], *text[max(0, held - known) :]]
                row = model.extend(unread)[0].copy()
                rows.append(row)
                text.append(int(row.argmax()))
        except Cancelled:
            return None  # the target's own pass is cancelled as well
        finally:
            self.native_seconds += cache.native_seconds - before
        return RowsAhead(np.stack(rows), text[len(self._draft) : -1]) if rows else None
