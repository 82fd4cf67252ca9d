"""Questions of the suites, their prompts, and what counts as right."""

import json
from pathlib import Path
from typing import Any

import pytest

from localspec import UsageError
from localspec.quality.items import SUITES, SuiteItem, load_items

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
    return load_items(suite, path, None)[0]


@pytest.mark.parametrize(
    ("suite", "question", "answer", "right"),
    [
        ("gsm8k", SUM, "The answer is 1005.", True),
        ("gsm8k", SUM, "1,005", True),
        ("gsm8k", SUM, "First 1005, then 7.", False),
        ("gsm8k", SUM, "", False),
        ("mmlu", CHOICE, "B", True),
        ("mmlu", CHOICE, "The answer is B.", True),
        ("mmlu", CHOICE, "C, not B", False),
        ("mmlu", CHOICE, "4", False),
        ("humaneval", CODE, "    return 2 * x\n", True),
        ("humaneval", CODE, "```python\ndef twice(x):\n    return x + x\n```\nIt adds.", True),
        ("humaneval", CODE, "```python\ndef twice(x):\n    return x\n```", False),
        ("humaneval", CODE, "Doubling is easy.", False),
    ],
)
def test_answers_are_judged(
    tmp_path: Path, suite: str, question: dict[str, Any], answer: str, right: bool
) -> None:
    """By the last number, by the first letter, or by tests of the code."""
    assert item(tmp_path, suite, question).right(answer) == right


def test_header_row_is_skipped(tmp_path: Path) -> None:
    header = {"subject": "s", "question": "question", "choices": ["a"], "answer": "answer"}
    found = item(tmp_path, "mmlu", header, CHOICE)
    assert found.id == "sums/2"
    assert "B. 4\n" in found.prompt


def test_choices_are_shuffled_reproducibly(tmp_path: Path) -> None:
    one, two = item(tmp_path, "truthfulqa", TRUTH), item(tmp_path, "truthfulqa", TRUTH)
    assert one.prompt == two.prompt
    (letter,) = [line[0] for line in one.prompt.splitlines() if line.endswith(". Salt")]
    assert [x for x in "ABC" if one.right(x)] == [letter]
    assert "Water" not in one.prompt


def test_limit_is_spread_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "questions.jsonl"
    question = SUM | {"question": "Two\u2028and three?"}  # a line separator, but no line's end
    path.write_text(f"{json.dumps(question, ensure_ascii=False)}\n" * 10)
    found = load_items("gsm8k", path, 3)
    assert [one.id for one in found] == ["1", "4", "7"]
    assert found[0].prompt.startswith("Two\u2028and three?")


@pytest.mark.parametrize("suite", SUITES)
def test_questions_of_other_suites_are_told_the_fields(tmp_path: Path, suite: str) -> None:
    path = tmp_path / "questions.jsonl"
    wrong = {"question": 1, "answer": "many", "choices": [], "prompt": None, "subject": ""}
    whole = json.dumps(wrong), json.dumps(wrong | {"answer": 99}), "[" * 99_999
    for text in ("{}\n", "[1]\n", '{"answer": 1\n', *whole):
        path.write_text(text)
        with pytest.raises(
            UsageError, match=rf"Line 1 .* of {suite}. .*{SUITES[suite][1]}"
        ) as told:
            load_items(suite, path, None)
        assert "Error" not in str(told.value)
    path.write_text("")
    with pytest.raises(UsageError, match="no prompts"):
        load_items(suite, path, None)
