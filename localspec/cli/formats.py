"""Output formats of an answer: text, one JSON object, JSON lines."""

from collections.abc import Mapping, Sequence
from typing import Any

from localspec import Chunk, Completion, Engine, GenerationStats
from localspec.cli.output import Console
from localspec.errors import Cancelled, describe
from localspec.prompting.pieces import Piece, Plain, Reader, Thought, as_text

TEXT, JSON, JSON_LINES = "text", "json", "jsonl"


class Format:
    """Prints an answer as events: start, chunk …, end, or error at any time. `kind`: TEXT for
    streamed text, with a newline at the end if it has none, and reasoning on standard error,
    dimmed; JSON for one object at the end, even if interrupted, but not after an error; JSON_LINES
    for one object per line and event."""

    def __init__(self, console: Console, kind: str) -> None:
        self._console, self._kind = console, kind
        self._reader: Reader = Plain()
        self._parts = {"text": "", "reasoning": ""}
        self._models: dict[str, Any] = {"model": None, "draft": None, "files": []}

    def ready(self, engine: Engine, stats: GenerationStats, reader: Reader) -> None:
        """Start: the models are open, and the prompt is tokenized."""
        self._reader = reader
        opened = [one for one in (engine.model, engine.draft) if one is not None]
        name, draft = (*(one.name for one in opened), None)[:2]
        self._models = {"model": name, "draft": draft, "files": [str(one.path) for one in opened]}
        names = ("prompt_tokens", "rule", "lossless", "seed")
        self._event("start", **self._models, **{name: getattr(stats, name) for name in names})

    def chunk(self, chunk: Chunk) -> None:
        self._console.erase_progress()
        self._part(self._reader.push(chunk.text), chunk)

    def finished(self, completion: Completion) -> None:
        rest = self._reader.finish()
        if rest:
            self._part(rest, Chunk("", (), (), None))
        finish, stats = completion.finish_reason, completion.stats.as_dict()
        self._event("end", **_without_empty(self._parts), finish_reason=finish, stats=stats)

    def failed(self, error: BaseException) -> None:
        """End with an error, or an interrupt before the first token."""
        if isinstance(error, Cancelled):
            self.finished(Completion("", "cancelled", GenerationStats()))
        else:
            message, code = describe(error)
            self._event("error", message=message, exit_code=code)

    def _part(self, pieces: Sequence[Piece], chunk: Chunk) -> None:
        parts = {
            "text": "".join(map(as_text, pieces)),
            "reasoning": "".join(one.text for one in pieces if isinstance(one, Thought)),
        }
        self._parts = {name: text + parts[name] for name, text in self._parts.items()}
        self._event(
            "chunk", **_without_empty(parts), token_ids=chunk.token_ids, sources=chunk.sources
        )

    def _event(self, name: str, **values: Any) -> None:
        if self._kind == JSON_LINES:
            self._console.answer_json({"event": name, **values})
        elif self._kind == TEXT:
            self._print(name, values)
        elif name == "end":
            self._console.answer_json({**values, **self._models})

    def _print(self, name: str, values: Mapping[str, Any]) -> None:
        text, reasoning = self._parts.values()
        aside = reasoning and not self._console.quiet
        if name == "chunk":
            if "reasoning" in values and aside:
                self._console.say(values["reasoning"], dim=True, end="")
            if values["text"] and text == values["text"] and aside:
                self._console.say("\n")
            if values["text"]:
                self._console.answer(values["text"])
        elif name != "start" and text and not text.endswith("\n"):
            self._console.answer("\n")
        elif name != "start" and aside and not text:
            self._console.say("")


def _without_empty(parts: dict[str, str]) -> dict[str, str]:
    """Leave out `reasoning` if it is empty."""
    return {name: text for name, text in parts.items() if text or name == "text"}
