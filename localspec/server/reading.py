"""Progress of reading a prompt, for clients that ask for it (`return_progress`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from localspec import Stream


@dataclass(frozen=True, slots=True)
class Reading:
    total: int
    cached: int
    processed: int
    seconds: float

    def as_llama_cpp(self) -> dict[str, Any]:
        progress = {"total": self.total, "cache": self.cached, "processed": self.processed}
        return {**progress, "time_ms": self.seconds * 1e3}


class ReadingReports:
    """The first of what was cached, the last of the whole prompt, each further than the one
    before."""

    def connect(self, stream: Stream, put: Callable[[Reading], object]) -> None:
        self._stats, self._put = stream.stats, put
        self._processed, self._begun = -1, 0.0

    def __call__(self, done: int, total: int) -> None:
        """See `progress` of `Engine.stream`."""
        for reading in self._made(total - done):
            self._put(reading)

    def last(self) -> Iterator[Reading]:
        return self._made(0)

    def _made(self, left: int) -> Iterator[Reading]:
        total, cached = self._stats.prompt_tokens, self._stats.cached_tokens
        if self._processed < 0:
            self._begun = perf_counter()
        for processed in (cached, max(cached, total - left)):
            if processed > self._processed:
                self._processed = processed
                yield Reading(total, cached, processed, perf_counter() - self._begun)
