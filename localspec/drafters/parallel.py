"""The draft model goes on while the target verifies: PEARL, Liu et al. 2024, section 3.2."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event

import numpy as np

from localspec.decoding.sampling import Row
from localspec.drafters.draft_logits import Reading
from localspec.drafters.draft_model import DraftModel
from localspec.errors import Cancelled

FARTHEST = 8
"""Most rows read ahead."""


class Ahead:
    """Reads rows for the next proposal on the assumption that everything is accepted.

    Only rows are worked out ahead of time, along the most probable tokens; nothing is drawn. A row
    is a function of the text before it, so using it later changes nothing about what is proposed.
    """

    def __init__(self, model: DraftModel) -> None:
        self._model = model
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="localspec-ahead")
        self._enough = Event()
        self._running: Future[Reading | None] | None = None
        self._reading: Reading | None = None
        self.native_seconds = 0.0
        """Seconds in native passes that the target's passes hid."""

    def start(self, text: Sequence[int]) -> None:
        """Go on from a text; the draft model belongs to this thread until `stop`."""
        self._enough.clear()
        self._running = self._thread.submit(self._read, list(text))

    def stop(self) -> None:
        """Let the pass that runs end, and keep what was read."""
        self._enough.set()
        running, self._running = self._running, None
        if running is not None:
            self._reading = running.result()

    def reading(self, text: Sequence[int]) -> Reading | None:
        """The rows, if the text went on as assumed."""
        reading, self._reading = self._reading, None
        return reading if reading is not None and reading.starts(text) else None

    def holds(self, text: Sequence[int]) -> bool:
        """Whether there are rows for this text."""
        return self._reading is not None and self._reading.starts(text)

    def close(self) -> None:
        """End the thread."""
        self.stop()
        self._thread.shutdown()

    def _read(self, text: list[int]) -> Reading | None:
        cache = self._model.cache
        before, start = cache.native_seconds, len(text)
        rows: list[Row] = []
        try:
            self._model.imagine(text)
            while len(rows) < FARTHEST and not (rows and self._enough.is_set()):
                if self._model.room(text) < 1:
                    break
                row = self._model.read(text[len(cache.tokens) :])[0].copy()
                rows.append(row)
                text.append(int(row.argmax()))
        except Cancelled:
            return None  # the target's own pass says so as well
        finally:
            self.native_seconds += cache.native_seconds - before
        return Reading(np.stack(rows), text[:-1], start) if rows else None
