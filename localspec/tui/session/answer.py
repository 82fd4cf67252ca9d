"""One answer on its way from the engine's thread to the screen."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from localspec.chat.conversation import Conversation, Message
from localspec.chat.figures import Figures, Meter, baseline
from localspec.chat.provenance import Provenance, fitted

if TYPE_CHECKING:
    from localspec import Chunk, Engine, GenerationStats


class ShownAnswer:
    """The engine's thread puts chunks in, the screen takes them out. `stats`: the stream's;
    `begins`: what the prompt ends with and belongs to the answer. `meter`, `provenance`: of the
    text that was taken."""

    def __init__(self, stats: GenerationStats, engine: Engine, begins: str = "") -> None:
        self._begins = begins
        self.text = ""
        self.meter = Meter(stats, engine.plain_seconds, engine.context_length, baseline(engine))
        self.provenance = Provenance(engine.token_bytes, begins)
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
                self.meter.add(chunk.step)
                self.provenance.add(chunk.step)
        text = "".join(parts)
        self.text += text if self.text or not text else self._begins + text
        return text


@dataclass(slots=True)
class Running:
    """An answer that is wanted, or in progress. `conversation`, `to`: where it belongs, and the id
    of the message that it answers; `message`, `answer`: once it has begun; `asked`: whether the
    engine's thread knows of it."""

    conversation: Conversation
    to: str
    message: Message | None = None
    answer: ShownAnswer | None = None
    asked: bool = False

    def take(self, *, spans: bool) -> bool:
        """Take in the progress, with sources for `spans`; whether there was any."""
        if self.answer is None or self.message is None or not self.answer.take():
            return False
        self.message.content = self.answer.text
        if spans:
            self.message.spans = fitted(self.answer.provenance.spans, len(self.answer.text))
        return True

    def finish(self, state: str, text: str | None = None) -> Figures | None:
        """Complete the message; returns its figures, None where it never began."""
        if self.answer is None or self.message is None:
            return None
        self.answer.take()
        self.message.content = self.answer.text if text is None else text
        self.message.state = state
        self.message.spans = fitted(self.answer.provenance.spans, len(self.answer.text))
        figures = self.answer.meter.figures()
        self.message.stats = figures.as_dict()
        return figures
