"""Questions of the suites, their prompts, and what counts as right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from localspec import UsageError
from localspec.quality.items import SuiteItem, load

SUM = {"question": "Two and three?", "answer": "2 + 3 = <<2+3=5>>5\n#### 1,005"}
CHOICE = {"subject": "sums", "question": "2 + 2?", "choices": ["3", "4", "5", "6"], "answer": "1"}
TRUTH = {
    "question": "What is in the sea?",
    "best_answer": "Salt",
    "correct_answers": ["Salt", "Water"],
    "incorrect_answers": ["Sugar", "Sand alone"],
}
CODE = {
    "task_id": "Test/0",
    "prompt": 'def twice(x):\n    """Double a number."""\n',
    "entry_point": "twice",
    "test": "def check(candidate):\n    assert candidate(2) == 4\n",
}


def item(tmp_path: Path, suite: str, *found: dict[str, Any]) -> SuiteItem:
    path = tmp_path / "questions.jsonl"
    path.write_text("\n".join(json.dumps(one) for one in found) + "\n")
    return load(suite, path, None)[0]


@pytest.mark.parametrize(
    ("said", "right"),
    [("The answer is 1005.", True), ("1,005", True), ("First 1005, then 7.", False), ("", False)],
)
def test_the_last_number_counts(tmp_path: Path, said: str, right: bool) -> None:
    assert item(tmp_path, "gsm8k", SUM).right(said) == right


@pytest.mark.parametrize(
    ("said", "right"), [("B", True), ("The answer is B.", True), ("C, not B", False), ("4", False)]
)
def test_the_first_letter_counts(tmp_path: Path, said: str, right: bool) -> None:
    found = item(tmp_path, "mmlu", CHOICE)
    assert found.right(said) == right
    assert "B. 4\n" in found.prompt


def test_names_of_columns_are_no_question(tmp_path: Path) -> None:
    header = {"subject": "s", "question": "question", "choices": ["a"], "answer": "answer"}
    assert item(tmp_path, "mmlu", header, CHOICE).id == "sums/2"


def test_choices_are_shuffled_the_same_way_every_time(tmp_path: Path) -> None:
    one, two = item(tmp_path, "truthfulqa", TRUTH), item(tmp_path, "truthfulqa", TRUTH)
    assert one.prompt == two.prompt
    (letter,) = [line[0] for line in one.prompt.splitlines() if line.endswith(". Salt")]
    assert [x for x in "ABC" if one.right(x)] == [letter]
    assert "Water" not in one.prompt


@pytest.mark.parametrize(
    ("said", "right"),
    [
        ("    return 2 * x\n", True),
        ("```python\ndef twice(x):\n    return x + x\n```\nIt adds.", True),
        ("```python\ndef twice(x):\n    return x\n```", False),
        ("Doubling is easy.", False),
    ],
)
def test_code_is_right_that_passes_its_tests(tmp_path: Path, said: str, right: bool) -> None:
    assert item(tmp_path, "humaneval", CODE).right(said) == right


def test_a_limit_spreads_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "questions.jsonl"
    path.write_text(f"{json.dumps(SUM)}\n" * 10)
    assert [one.id for one in load("gsm8k", path, 3)] == ["1", "4", "7"]


@pytest.mark.parametrize(
    ("content", "why"),
    [("", "no questions"), ("{}\n", "Line 1"), ("[1]\n", "Line 1"), ('{"answer": 1\n', "Line 1")],
)
def test_what_a_file_lacks_is_told(tmp_path: Path, content: str, why: str) -> None:
    path = tmp_path / "questions.jsonl"
    path.write_text(content)
    with pytest.raises(UsageError, match=why):
        load("gsm8k", path, None)


def test_suites_and_files_that_are_not_there_are_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="humaneval, mmlu"):
        load("drop", tmp_path, None)
    with pytest.raises(UsageError, match="--file"):
        load("mmlu", tmp_path / "none.jsonl", None)
