"""Prompts: the suites that come with the package, and those of a user's own files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from localspec.bench.samples import BenchPrompt
from localspec.errors import UsageError
from localspec.files import read_file
from localspec.prompting.template import Message, check_messages

BUILT_IN = Path(__file__).with_name("prompts.jsonl")
"""Eight prompts each of seven kinds, written for the embedded pair."""

SETS = {
    "stories": BUILT_IN,
    "questions": Path(__file__).with_name("questions.jsonl"),
    "questions-tuning": Path(__file__).with_name("questions_tuning.jsonl"),
    "public": Path(__file__).with_name("public.jsonl"),
}
"""What comes with the package. The questions are Spec-Bench's, of 13 kinds: those that nothing here
may be fitted to, and those that are there for fitting. The public ones, for judging as well, are
HumanEval's, GSM8K's, MMLU's and TruthfulQA's, six of each."""

SUITES = ("story", "continue", "math", "qa", "code", "copy", "noise")
"""The suites of BUILT_IN, in their order there."""

_SHAPE = '{"prompt": "…", "suite": "…", "id": "…"}'
_TURN = re.compile(r"<\|user\|>(.*)<\|end\|><\|assistant\|>", re.DOTALL)
"""How BUILT_IN marks what the user says."""


def load_suites(
    files: Sequence[Path] = (),
    *,
    suites: Sequence[str] | None = None,
    per_suite: int | None = None,
) -> list[BenchPrompt]:
    """Read prompts, the suites mixed: the first of each suite, then the second of each, and so on.

    So a run that is stopped early has seen all kinds, and none alone meets the hot hour.

    Args:
        files: keys of SETS, or JSONL, an object per line: `prompt` (raw text with its chat
            markers), `turns` (what the user says, one text after the other, as in Spec-Bench) or
            `messages` (with role and content, the last one the user's); and if wanted `suite` or
            `family` (the file's name without ending) and `id` (counted). None at all takes the
            stories.
        suites: which of them, None for all.
        per_suite: prompts of each at most.

    Raises:
        UsageError: a file that is missing, empty or malformed, a suite that is in none of them.
    """
    if per_suite is not None and per_suite < 1:
        raise UsageError(f"Prompts per suite is {per_suite}. Give 1 or more.")
    by_suite: dict[str, list[BenchPrompt]] = {}
    seen: set[tuple[str, str]] = set()
    for named in files or (BUILT_IN,):
        path = named if named.exists() else SETS.get(str(named), named)
        found = False
        for line, entry in _entries(path):
            suite = _text(entry, "suite", path, line) or _text(entry, "family", path, line)
            suite = suite or path.stem
            prompts = by_suite.setdefault(suite, [])
            name = _text(entry, "id", path, line) or f"{suite}-{len(prompts)}"
            if (suite, name) in seen:
                raise UsageError(
                    f"{path}, line {line}: suite '{suite}' has a prompt '{name}' already. "
                    "Give each its own id."
                )
            seen.add((suite, name))
            prompts.append(_prompt(name, suite, entry, path, line))
            found = True
        if not found:
            raise UsageError(f"{path} holds no prompts. Write one per line: {_SHAPE}")
    for suite in suites or ():
        if suite not in by_suite:
            raise UsageError(f"There is no suite '{suite}'. Choose from {', '.join(by_suite)}.")
    chosen = [
        prompts[:per_suite]
        for suite, prompts in by_suite.items()
        if suites is None or suite in suites
    ]
    mixed = chain.from_iterable(zip_longest(*chosen))
    return [prompt for prompt in mixed if prompt is not None]


def story_prompt(name: str, suite: str, text: str) -> BenchPrompt:
    """A prompt with the embedded pair's chat markers, or with none."""
    turn = _TURN.fullmatch(text)
    return BenchPrompt(name, suite, text, () if turn is None else (_said(turn[1]),))


def _prompt(name: str, suite: str, entry: dict[str, Any], path: Path, line: int) -> BenchPrompt:
    if "prompt" in entry:
        text = entry["prompt"]
        return (
            story_prompt(name, suite, text) if path == BUILT_IN else BenchPrompt(name, suite, text)
        )
    if "turns" in entry:
        first, *later = _turns(entry["turns"], path, line)
        return BenchPrompt(name, suite, first, (_said(first),), tuple(later))
    messages = _messages(entry["messages"], path, line)
    return BenchPrompt(name, suite, str(messages[-1]["content"]), messages)


def _said(text: str) -> Message:
    return {"role": "user", "content": text}


def _turns(value: Any, path: Path, line: int) -> list[str]:
    if (
        not isinstance(value, list)
        or not value
        or not all(isinstance(turn, str) and turn for turn in value)
    ):
        raise UsageError(
            f'{path}, line {line}: "turns" is not a list of user messages. '
            'Write it like {"turns": ["…", "…"]}'
        )
    return value


def _messages(value: Any, path: Path, line: int) -> tuple[Message, ...]:
    try:
        if not isinstance(value, list):
            raise UsageError("It is not a list.")
        check_messages(value)
        if value[-1]["role"] != "user":
            raise UsageError("The last one is not the user's.")
    except UsageError as error:
        raise UsageError(
            f'{path}, line {line} has "messages" that cannot be answered: {error}'
        ) from None
    return tuple(value)


def _entries(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line numbers and objects, each with a prompt, turns or messages."""
    try:
        lines = read_file(path, streams=True).decode("utf-8-sig").split("\n")
    except FileNotFoundError:
        raise UsageError(
            f"There is no file {path}. Check the path, or name none to take the built-in suites."
        ) from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}. Name a JSONL file.") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not text in UTF-8. Save it as UTF-8.") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
        except ValueError as error:
            raise UsageError(
                f"{path}, line {number} is not JSON: {error}. Write one object per line: {_SHAPE}"
            ) from None
        chat = isinstance(entry, dict) and "prompt" not in entry
        if chat and ("turns" in entry or "messages" in entry):
            yield number, entry
            continue
        if not isinstance(entry, dict) or not isinstance(entry.get("prompt"), str):
            raise UsageError(
                f'{path}, line {number} has no text in "prompt", no "turns" and no "messages". '
                f"Write it like {_SHAPE}"
            )
        if not entry["prompt"]:
            raise UsageError(f"{path}, line {number} has an empty prompt. Leave the line out.")
        yield number, entry


def _text(entry: dict[str, Any], key: str, path: Path, line: int) -> str:
    value = entry.get(key, "")
    # A number is a sensible id, and unmistakable.
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        raise UsageError(f'{path}, line {line}: "{key}" is not text. Write it like {_SHAPE}')
    return value
