"""What a target is asked, and texts that it only reads."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from localspec.bench.suites import prompt_lines
from localspec.distill.recording import RecordedQuestion
from localspec.errors import UsageError
from localspec.llama.vocabulary import Vocabulary
from localspec.prompting.prompt import Prompt, PromptBuilder
from localspec.retrieval.texts import SkippedFiles, texts_in

PIECE = 256
"""Tokens of a text that are read together."""
LEAST = 16
"""Tokens; a shorter rest of a text is left out."""
_SHAPE = '{"prompt": "…"}, {"turns": ["…"]} or {"messages": [{"role": "user", "content": "…"}]}'


def read_prompts(path: Path) -> Iterator[Prompt]:
    """Of a file: JSON lines, or a prompt a line. A text is what a user says; `messages` is a chat.
    A UsageError if it cannot be read, or has none."""
    for number, line in prompt_lines(path, f"text, or JSON as {_SHAPE}"):
        yield _entry(line, path, number) if path.suffix == ".jsonl" else line


def _entry(line: str, path: Path, number: int) -> Prompt:
    try:
        entry = json.loads(line)
        for name in ("prompt", "messages", "turns"):
            value = entry.get(name)
            if name == "prompt" and isinstance(value, str) and value:
                return value
            if name == "turns" and isinstance(value, list) and value:
                return str(value[0])
            if name == "messages" and isinstance(value, list) and value:
                return [{"role": str(m["role"]), "content": str(m["content"])} for m in value]
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
        pass
    raise UsageError(f"{path}, line {number} is not a prompt. Write {_SHAPE}.")


def questions(
    prompts: Sequence[Prompt],
    builder: PromptBuilder,
    tokenize: Callable[[str], list[int]],
    *,
    raw: bool,
    answers: int,
) -> Iterator[RecordedQuestion]:
    """Every prompt as often as it is to be answered: all once, then all once more. `tokenize`: raw
    text, its control tokens and a BOS included; `raw`: take text without the chat template. A
    UsageError if the target has none, or it refuses messages."""
    for turn in range(answers):
        for prompt in prompts:
            if isinstance(prompt, str) and raw:
                tokens = tokenize(prompt)
            else:
                chat = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
                tokens = list(builder.rendered(builder.text(chat)))
            if tokens:
                yield RecordedQuestion(tuple(tokens), turn)


def pieces(path: Path, vocabulary: Vocabulary, skipped: SkippedFiles) -> Iterator[RecordedQuestion]:
    """The texts of a file or folder, a piece at a time, after a BOS where the model has one. A
    UsageError if there is no such path."""
    begins = (vocabulary.bos,) if vocabulary.adds_bos and vocabulary.bos >= 0 else ()
    for text in texts_in(path, skipped):
        tokens = vocabulary.tokenize(text, special=False, add_bos=False)
        for start in range(0, len(tokens), PIECE):
            piece = tokens[start : start + PIECE]
            given = tuple(piece if begins else piece[1:])
            if len(given) >= LEAST:
                yield RecordedQuestion(begins or (piece[0],), 0, given)
