"""Progress of reading a prompt, for clients that ask for it (`return_progress`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from localspec import Stream


@dataclass(frozen=True, slots=True)
class Reading:
    """How far a prompt is read: tokens, and seconds since the first report."""

    total: int
    cached: int
    processed: int
    seconds: float

    def as_llama_cpp(self) -> dict[str, Any]:
        progress = {"total": self.total, "cache": self.cached, "processed": self.processed}
        return {**progress, "time_ms": self.seconds * 1e3}


class ReadingReports:
    """Makes `Reading`s of an engine's progress, in the thread of the answer: the first of what was
    cached, the last of the whole prompt, each further than the one before."""

    def __init__(self) -> None:
        self._stream: Stream | None = None
        self._put: Callable[[Reading], object] = lambda reading: None
        self._processed = -1
        self._begun = 0.0

    def connect(self, stream: Stream, put: Callable[[Reading], object]) -> None:
        self._stream, self._put = stream, put

    def __call__(self, done: int, total: int) -> None:
        """See `progress` of `Engine.stream`."""
        assert self._stream is not None
        stats = self._stream.stats
        if self._processed < 0:
            self._begun = perf_counter()
        left = stats.prompt_tokens - (total - done)
        for processed in (stats.cached_tokens, max(stats.cached_tokens, left)):
            if processed > self._processed:
                self._processed = processed
                seconds = perf_counter() - self._begun
                self._put(Reading(stats.prompt_tokens, stats.cached_tokens, processed, seconds))

    def finish(self) -> None:
        self(0, 0)
