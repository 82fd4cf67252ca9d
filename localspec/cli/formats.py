"""Formats of an answer on standard output: text, one JSON object, JSON lines."""

from __future__ import annotations

from typing import Any

from localspec import Chunk, Completion, GenerationStats
from localspec.cli.output import Console
from localspec.cli.worker import Ready
from localspec.errors import Cancelled, describe


class Format:
    """Called in this order; `failed` may replace the rest at any time."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def ready(self, ready: Ready) -> None:
        """The models are open."""

    def chunk(self, chunk: Chunk) -> None:
        """A part of the answer."""

    def finished(self, completion: Completion) -> None:
        """All of it."""

    def failed(self, error: BaseException) -> None:
        """After an error, or an interrupt before the first token."""


class TextFormat(Format):
    """The text as it comes, and a newline at the end where it has none."""

    _last = "\n"

    def chunk(self, chunk: Chunk) -> None:
        if chunk.text:
            self._console.answer(chunk.text)
            self._last = chunk.text[-1]

    def finished(self, completion: Completion) -> None:
        self._end_line()

    def failed(self, error: BaseException) -> None:
        self._end_line()

    def _end_line(self) -> None:
        if self._last != "\n":
            self._console.answer("\n")


class JsonObject(Format):
    """One object at the end, also when interrupted, but not after an error."""

    _ready: Ready | None = None

    def ready(self, ready: Ready) -> None:
        self._ready = ready

    def finished(self, completion: Completion) -> None:
        found = {
            "text": completion.text,
            "finish_reason": completion.finish_reason,
            "model": None if self._ready is None else self._ready.model,
            "draft": None if self._ready is None else self._ready.draft,
            "stats": completion.stats.as_dict(),
        }
        self._console.answer_json(found)

    def failed(self, error: BaseException) -> None:
        if isinstance(error, Cancelled):
            self.finished(_nothing())


class JsonLines(Format):
    """One object per line and event: start, chunk …, end; or error."""

    def ready(self, ready: Ready) -> None:
        stats = ready.stats
        self._event(
            "start",
            model=ready.model,
            draft=ready.draft,
            prompt_tokens=stats.prompt_tokens,
            rule=stats.rule,
            lossless=stats.lossless,
            seed=stats.seed,
        )

    def chunk(self, chunk: Chunk) -> None:
        self._event("chunk", text=chunk.text, token_ids=chunk.token_ids, sources=chunk.sources)

    def finished(self, completion: Completion) -> None:
        self._event(
            "end",
            text=completion.text,
            finish_reason=completion.finish_reason,
            stats=completion.stats.as_dict(),
        )

    def failed(self, error: BaseException) -> None:
        if isinstance(error, Cancelled):
            self.finished(_nothing())
        else:
            message, code = describe(error)
            self._event("error", message=message, exit_code=code)

    def _event(self, name: str, **values: Any) -> None:
        self._console.answer_json({"event": name, **values})


def _nothing() -> Completion:
    """The completion after an interrupt before the first token."""
    return Completion("", "cancelled", GenerationStats())
