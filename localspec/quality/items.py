"""Questions of public suites, from JSON lines as published, with checks of the answers."""

import json
import random
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localspec.bench.suites import prompt_lines
from localspec.errors import UsageError
from localspec.quality.programs import runs_to_end

LETTERS = "ABCDEFGHIJKLMNOP"


@dataclass(frozen=True, slots=True)
class SuiteItem:
    """A question: its name, prompt, maximum tokens of an answer, and a check of the answer."""

    id: str
    prompt: str
    max_tokens: int
    right: Callable[[str], bool]


def load_items(suite: str, path: Path | None, limit: int | None) -> list[SuiteItem]:
    """The questions of a file, or `limit` of them, evenly spread. A UsageError for an unknown
    suite, an unreadable file, or wrong fields."""
    if suite not in SUITES:
        raise UsageError(f"There is no suite '{suite}'. Choose one of {', '.join(SUITES)}.")
    if path is None:
        raise UsageError("There is no file of questions. Name one with --file FILE.")
    make, fields = SUITES[suite]
    items = []
    for number, line in prompt_lines(path, f"a question of {suite}, as published"):
        try:
            item = make(json.loads(line), str(number))
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            raise UsageError(
                f"Line {number} of {path} is not a question of {suite}. Give JSON with the fields "
                f"{fields}."
            ) from None
        items += [] if item is None else [item]
    if limit is None or limit >= len(items):
        return items
    return [items[i * len(items) // limit] for i in range(limit)]


def _gsm8k(found: dict[str, Any], number: str) -> SuiteItem:
    expected = _number(found["answer"].rpartition("####")[2])
    if expected is None:
        raise ValueError("no number after ####")
    prompt = f"{found['question']}\nThink step by step, and end with 'The answer is' and a number."
    return SuiteItem(number, prompt, 256, lambda text: _number(text) == expected)


_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


def _number(text: str) -> float | None:
    found = _NUMBER.findall(text)
    return float(found[-1].replace(",", "")) if found else None


def _mmlu(found: dict[str, Any], number: str) -> SuiteItem | None:
    if found["answer"] == "answer":  # some copies have the column names as a question
        return None
    right = int(found["answer"])
    return _choice(found["question"], found["choices"], right, f"{found['subject']}/{number}")


def _truthfulqa(found: dict[str, Any], number: str) -> SuiteItem:
    """The best answer and wrong ones (MC1 of Lin et al. 2022), in a fixed order."""
    best = found["best_answer"]
    choices = [best, *found["incorrect_answers"]][: len(LETTERS)]
    random.Random(found["question"]).shuffle(choices)
    return _choice(found["question"], choices, choices.index(best), number)


def _choice(question: str, choices: Iterable[str], right: int, name: str) -> SuiteItem:
    lettered = dict(zip(LETTERS, choices, strict=False))
    wanted = LETTERS[right]
    if wanted not in lettered:
        raise ValueError(f"no choice number {right}")
    options = "\n".join(f"{letter}. {text}" for letter, text in lettered.items())
    prompt = f"{question}\n{options}\nAnswer with the letter of the right choice alone."
    letter = re.compile(rf"\b([{''.join(lettered)}])\b")

    def check(text: str) -> bool:
        letters = letter.search(text)
        return letters is not None and letters[1] == wanted

    return SuiteItem(name, prompt, 16, check)


_BLOCK = re.compile(r"```(?:python)?\n(.*?)(?:```|\Z)", re.DOTALL)


def _humaneval(found: dict[str, Any], number: str) -> SuiteItem:
    start, entry, test = found["prompt"], found["entry_point"], found["test"]

    def check(text: str) -> bool:
        block = _BLOCK.search(text)
        code = block[1] if block else text
        # Code before the function (imports, helpers) is needed; a bare body continues the prompt.
        whole = f"{start}\n    pass\n\n{code}" if f"def {entry}" in code else start + code
        return runs_to_end(f"{whole}\n\n{test}\n\ncheck({entry})\n")

    prompt = f"Complete this Python function. Answer with its code alone.\n```python\n{start}```"
    return SuiteItem(str(found.get("task_id", number)), prompt, 320, check)


SUITES: dict[str, tuple[Callable[[dict[str, Any], str], SuiteItem | None], str]] = {
    "gsm8k": (_gsm8k, "question and answer, which has a number after ####"),
    "humaneval": (_humaneval, "task_id, prompt, entry_point and test"),
    "mmlu": (_mmlu, "subject, question, choices and answer, the number of a choice"),
    "truthfulqa": (_truthfulqa, "question, best_answer and incorrect_answers"),
}
"""Makers of questions, and their fields, for error messages."""
