"""Prompts come mixed, and a file that is wrong says where."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from localspec.bench.suites import SUITES, load_suites
from localspec.errors import UsageError


def write(path: Path, *lines: object) -> Path:
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    return path


def test_built_in_suites_are_mixed(prompts: list[str]) -> None:
    loaded = load_suites()
    assert tuple(prompt.suite for prompt in loaded[:7]) == SUITES
    assert tuple(prompt.suite for prompt in loaded[7:14]) == SUITES
    assert Counter(prompt.suite for prompt in loaded) == dict.fromkeys(SUITES, 8)
    assert {prompt.text for prompt in loaded} == set(prompts)
    assert len({prompt.id for prompt in loaded}) == 56


def test_a_choice_of_suites() -> None:
    loaded = load_suites(suites=["copy", "story"], per_suite=2)
    assert [prompt.id for prompt in loaded] == ["story-0", "copy-0", "story-1", "copy-1"]


def test_own_files(tmp_path: Path) -> None:
    mail = write(tmp_path / "mail.jsonl", {"prompt": "Dear"}, {"prompt": "Hi", "id": "short"})
    more = write(
        tmp_path / "more.jsonl",
        {"prompt": "def f", "family": "code", "id": 7},
        {"prompt": "Best,", "suite": "mail"},
    )
    loaded = [(p.suite, p.id, p.text) for p in load_suites([mail, more])]
    assert loaded == [
        ("mail", "mail-0", "Dear"),
        ("code", "7", "def f"),
        ("mail", "short", "Hi"),
        ("mail", "mail-2", "Best,"),
    ]


def test_blank_lines_and_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text('\ufeff{"prompt": "a\u2028b"}\n\n', encoding="utf-8")
    assert [prompt.text for prompt in load_suites([path])] == ["a\u2028b"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "holds no prompts"),
        ("\n \n", "holds no prompts"),
        ('{"prompt": "a"}\n{"prompt": \n', "line 2 is not JSON"),
        ('{"text": "a"}\n', 'line 1 has no text in "prompt"'),
        ('["a"]\n', 'line 1 has no text in "prompt"'),
        ('{"prompt": 5}\n', 'line 1 has no text in "prompt"'),
        ('{"prompt": ""}\n', "line 1 has an empty prompt"),
        ('{"prompt": "a", "id": []}\n', 'line 1: "id" is not text'),
        ('{"prompt": "a", "id": "x"}\n{"prompt": "b", "id": "x"}\n', "line 2: suite 'own' has"),
    ],
)
def test_malformed_files(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(UsageError, match=message):
        load_suites([path])


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no file"):
        load_suites([tmp_path / "none.jsonl"])
    with pytest.raises(UsageError, match="cannot be read"):
        load_suites([tmp_path])
    (tmp_path / "latin.jsonl").write_bytes(b'{"prompt": "\xe4"}')
    with pytest.raises(UsageError, match="UTF-8"):
        load_suites([tmp_path / "latin.jsonl"])


def test_unknown_suite_and_count() -> None:
    with pytest.raises(UsageError, match=r"no suite 'poem'.*story, continue, math"):
        load_suites(suites=["poem"])
    with pytest.raises(UsageError, match="1 or more"):
        load_suites(per_suite=0)
