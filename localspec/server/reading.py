"""How far the prompt of an answer is read, for clients that ask for it (`return_progress`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from localspec import Stream


@dataclass(frozen=True, slots=True)
class Reading:
    """How far a prompt is read.

    Attributes:
        total: tokens of it.
        cached: of those, tokens that needed no reading; `processed` includes them.
        seconds: since the first report.
    """

    total: int
    cached: int
    processed: int
    seconds: float

    def as_llama_cpp(self) -> dict[str, Any]:
        """llama.cpp's `prompt_progress`."""
        return {
            "total": self.total,
            "cache": self.cached,
            "processed": self.processed,
            "time_ms": self.seconds * 1e3,
        }


class ReadingReports:
    """Makes `Reading`s of what an engine tells; each is further than the one before, the first one
    is of what was cached, and the last one of the whole prompt. All in the thread of the answer."""

    def __init__(self) -> None:
        self._stream: Stream | None = None
        self._tell: Callable[[Reading], object] = lambda reading: None
        self._latest: Reading | None = None
        self._begun = 0.0

    def connect(self, stream: Stream, tell: Callable[[Reading], object]) -> None:
        """Report on this stream, before it begins."""
        self._stream, self._tell = stream, tell

    def __call__(self, done: int, total: int) -> None:
        """So many of so many tokens are read; see `Engine.stream`."""
        assert self._stream is not None
        stats = self._stream.stats
        self._report(max(stats.cached_tokens, stats.prompt_tokens - (total - done)))

    def finish(self) -> None:
        """The answer begins."""
        assert self._stream is not None
        self._report(self._stream.stats.prompt_tokens)

    def _report(self, processed: int) -> None:
        assert self._stream is not None
        stats = self._stream.stats
        if self._latest is None:
            self._begun = perf_counter()
            self._told(stats.cached_tokens)
        if self._latest is None or processed > self._latest.processed:
            self._told(processed)

    def _told(self, processed: int) -> None:
        assert self._stream is not None
        stats, seconds = self._stream.stats, perf_counter() - self._begun
        self._latest = Reading(stats.prompt_tokens, stats.cached_tokens, processed, seconds)
        self._tell(self._latest)
