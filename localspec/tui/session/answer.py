"""One answer: what is passed from the engine's thread to the screen."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from localspec.chat.conversation import Conversation, Message
from localspec.chat.figures import Figures, Meter, Provenance

if TYPE_CHECKING:
    from localspec import Chunk, Engine, Stream
    from localspec.decoding.logprobs import TokenLogprob


class Answer:
    """An answer that is pending, in progress, or finished. The engine's thread puts chunks in, the
    screen takes them out. `conversation`: the conversation it belongs to; `to`: id of the message
    it answers; `message`: the answer's message, once it has begun; `submitted`: whether it was
    passed to the engine's thread; `kept`: time when it was last written to the history;
    `finish_reason`: the stream's, or REPEATS; None while it runs; `text`, `logprobs`: of the chunks
    taken so far.

    Set by `begin`: `model`, `draft`, `prompt` (tokens), `meter` and `provenance` (of taken chunks).
    """

    model: str
    draft: str | None
    meter: Meter
    provenance: Provenance

    def __init__(self, conversation: Conversation, to: str) -> None:
        self.conversation, self.to = conversation, to
        self.message: Message | None = None
        self.submitted = False
        self.kept = 0.0
        self.finish_reason: str | None = None
        self.text = ""
        self.logprobs: list[TokenLogprob] = []
        # Appending and popping are atomic: neither side waits for the other.
        self._chunks: deque[Chunk] = deque()

    def begin(self, stream: Stream, engine: Engine, begins: str) -> None:
        """Called in the engine's thread before the first chunk. `begins`: the start of the answer
        that is part of the prompt."""
        self._begins = begins
        self.prompt = stream.prompt
        self.model = engine.model.name
        self.draft = None if engine.draft is None else engine.draft.name
        self.meter = Meter(stream.stats, engine)
        self.provenance = Provenance(engine.token_bytes, begins)

    def put(self, chunk: Chunk) -> None:
        """Add a chunk. Called in the engine's thread between two passes, so it must be fast."""
        self._chunks.append(chunk)

    def take(self, *, spans: bool = False) -> bool:
        """Process the chunks since the last call, and update the message, including its spans if
        `spans`; returns whether there was new text."""
        parts = []
        while self._chunks:
            chunk = self._chunks.popleft()
            parts.append(chunk.text)
            if chunk.step is not None:
                self.meter.add(chunk.step)
                self.provenance.add(chunk.step)
                self.logprobs += chunk.step.logprobs
        text = "".join(parts)
        if text:
            self.text = (self.text or self._begins) + text
        if self.message is not None:
            self.message.content = self.text
            if spans:
                self.message.spans = list(self.provenance.spans)
        return bool(text)

    def finish(self, message: Message, state: str, finish_reason: str | None = None) -> Figures:
        """Complete the message; returns its figures."""
        self.take(spans=True)
        message.state, message.finish_reason = state, finish_reason
        figures = self.meter.figures()
        message.stats = figures.as_dict()
        return figures
