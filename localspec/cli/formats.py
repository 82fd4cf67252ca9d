"""Formats of an answer on standard output: text, one JSON object, JSON lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from localspec import Chunk, Completion, Engine, GenerationStats
from localspec.cli.output import Console
from localspec.errors import Cancelled, describe
from localspec.prompting.pieces import Piece, Plain, Reader, Thought, as_text


class Format:
    """Prints an answer. `failed` may replace the rest at any time."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._reader: Reader = Plain()
        self._said = {"text": "", "reasoning": ""}
        self._models: dict[str, str | None] = {"model": None, "draft": None}

    def ready(self, engine: Engine, stats: GenerationStats, reader: Reader) -> None:
        """The models are open, and the prompt is tokenized."""
        self._reader = reader
        draft = None if engine.draft is None else str(engine.draft.path)
        self._models = {"model": str(engine.model.path), "draft": draft}

    def chunk(self, chunk: Chunk) -> None:
        self._console.erase_progress()
        self._part(self._kept(self._reader.push(chunk.text)), chunk)

    def finished(self, completion: Completion) -> None:
        rest = self._kept(self._reader.finish())
        if any(rest.values()):
            self._part(rest, Chunk("", (), (), None))
        self._end(completion)

    def _kept(self, pieces: Sequence[Piece]) -> dict[str, str]:
        parts = {
            "text": "".join(map(as_text, pieces)),
            "reasoning": "".join(one.text for one in pieces if isinstance(one, Thought)),
        }
        self._said = {name: said + parts[name] for name, said in self._said.items()}
        return parts

    def _part(self, parts: Mapping[str, str], chunk: Chunk) -> None:
        """Text and reasoning that a chunk brought."""

    def _end(self, completion: Completion) -> None: ...

    def failed(self, error: BaseException) -> None:
        """After an error, or an interrupt before the first token."""


class TextFormat(Format):
    """The text as it comes, and a newline at the end where it has none; reasoning on standard
    error, dim."""

    def _part(self, parts: Mapping[str, str], chunk: Chunk) -> None:
        quiet = self._console.quiet
        if parts["reasoning"] and not quiet:
            self._console.say(parts["reasoning"], dim=True, end="")
        if parts["text"]:
            if self._said["reasoning"] and self._said["text"] == parts["text"] and not quiet:
                self._console.say("\n")
            self._console.answer(parts["text"])

    def _end(self, completion: Completion) -> None:
        self._end_line()

    def failed(self, error: BaseException) -> None:
        self._end_line()

    def _end_line(self) -> None:
        text, reasoning = self._said.values()
        if text and not text.endswith("\n"):
            self._console.answer("\n")
        elif reasoning and not text and not self._console.quiet:
            self._console.say("")


class JsonLines(Format):
    """One object per line and event: start, chunk …, end; or error."""

    def ready(self, engine: Engine, stats: GenerationStats, reader: Reader) -> None:
        super().ready(engine, stats, reader)
        names = ("prompt_tokens", "rule", "lossless", "seed")
        self._event("start", **self._models, **{name: getattr(stats, name) for name in names})

    def _part(self, parts: Mapping[str, str], chunk: Chunk) -> None:
        tokens = {"token_ids": chunk.token_ids, "sources": chunk.sources}
        self._event("chunk", **_named(parts), **tokens)

    def _end(self, completion: Completion) -> None:
        self._event(
            "end",
            **_named(self._said),
            finish_reason=completion.finish_reason,
            stats=completion.stats.as_dict(),
        )

    def failed(self, error: BaseException) -> None:
        if isinstance(error, Cancelled):  # before the first token
            self.finished(Completion("", "cancelled", GenerationStats()))
        else:
            message, code = describe(error)
            self._event("error", message=message, exit_code=code)

    def _event(self, name: str, **values: Any) -> None:
        self._console.answer_json({"event": name, **values})


class JsonObject(JsonLines):
    """One object at the end, also when interrupted, but not after an error."""

    def _event(self, name: str, **values: Any) -> None:
        if name == "end":
            self._console.answer_json({**values, **self._models})


def _named(parts: Mapping[str, str]) -> dict[str, str]:
    """Reasoning is named only where there is some."""
    return {name: said for name, said in parts.items() if said or name == "text"}
