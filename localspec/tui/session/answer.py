"""One answer on its way from the engine's thread to the screen."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from localspec.chat.figures import OWN, Baseline, Figures, Meter
from localspec.chat.provenance import Provenance, Rejected, Span

if TYPE_CHECKING:
    from localspec import Chunk, GenerationStats


class ShownAnswer:
    """The engine's thread puts chunks in, the screen takes them out.

    Args:
        message: id of the message that it becomes.
        stats: the stream's.
        plain_seconds, token_bytes, context_length, baseline: see `Meter` and `Provenance`.
    """

    def __init__(
        self,
        message: str,
        stats: GenerationStats,
        *,
        plain_seconds: Callable[[int], float | None],
        token_bytes: Callable[[int], bytes],
        context_length: int,
        baseline: Baseline = OWN,
    ) -> None:
        self.message = message
        self.text = ""
        self._meter = Meter(stats, plain_seconds, context_length, baseline)
        self._provenance = Provenance(token_bytes)
        # Appending and popping are atomic: neither side waits for the other.
        self._chunks: deque[Chunk] = deque()

    def put(self, chunk: Chunk) -> None:
        """Called in the engine's thread between two passes: as little as possible."""
        self._chunks.append(chunk)

    def take(self) -> str:
        """Take in the chunks since the last call; returns their text."""
        parts = []
        while self._chunks:
            chunk = self._chunks.popleft()
            parts.append(chunk.text)
            if chunk.step is not None:
                self._meter.add(chunk.step)
                self._provenance.add(chunk.step)
        text = "".join(parts)
        self.text += text
        return text

    def figures(self) -> Figures:
        return self._meter.figures()

    def spans(self) -> list[Span]:
        return self._provenance.cut(len(self.text))

    @property
    def rejected(self) -> list[Rejected]:
        return self._provenance.rejected
