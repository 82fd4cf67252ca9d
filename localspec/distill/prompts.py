"""Prompts for a target to answer, and texts for it to read."""

import json
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

from localspec.bench.suites import prompt_lines
from localspec.distill.recording import RecordedQuestion
from localspec.errors import UsageError
from localspec.llama.vocabulary import Vocabulary
from localspec.prompting.prompt import Prompt, PromptBuilder
from localspec.retrieval.texts import SkippedFiles, texts_in

CHUNK = 256
"""Tokens of a text that form one question."""
MIN_TOKENS = 16
"""Minimum tokens of a chunk; shorter remainders of a text are left out."""
_SHAPE = '{"prompt": "…"}, {"turns": ["…"]} or {"messages": [{"role": "user", "content": "…"}]}'


def read_prompts(path: Path) -> Iterator[Prompt]:
    """The prompts of a file: JSON lines, or one prompt per line. A text is a user's message;
    `messages` is a chat. A UsageError if the file cannot be read, or has none."""
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
    prompts: Sequence[Prompt], builder: PromptBuilder, *, raw: bool, answers: int
) -> Iterator[RecordedQuestion]:
    """Every prompt `answers` times: all once, then all again. `raw`: use text without the chat
    template. A UsageError if the target has no chat template, or the template refuses messages."""
    for turn, prompt in product(range(answers), prompts):
        if isinstance(prompt, str) and raw:
            text = prompt
        else:
            chat = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
            text = builder.text(chat)
        if tokens := tuple(builder.rendered(text)):
            yield RecordedQuestion(tokens, turn)


def text_questions(
    path: Path, vocabulary: Vocabulary, skipped: SkippedFiles
) -> Iterator[RecordedQuestion]:
    """The texts of a file or folder in chunks, each after a BOS if the model has one. A UsageError
    for a missing path."""
    begins = (vocabulary.bos,) if vocabulary.adds_bos and vocabulary.bos >= 0 else ()
    for text in texts_in(path, skipped):
        tokens = vocabulary.tokenize(text)
        for start in range(0, len(tokens), CHUNK):
            piece = tokens[start : start + CHUNK]
            given = tuple(piece if begins else piece[1:])
            if len(given) >= MIN_TOKENS:
                yield RecordedQuestion(begins or (piece[0],), 0, given)
