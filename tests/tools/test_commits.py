"""Arms that answer in turns: nothing of an answer is lost or counted twice."""

import json
import re
import subprocess
import sys
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest

from tools import commits

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[2]
TARGET, DRAFT = ROOT / "models/tale-13m-q8_0.gguf", ROOT / "models/tale-3m-q8_0.gguf"


def test_turns_add_up_to_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = count()
    monkeypatch.setattr(commits, "perf_counter", lambda: next(ticks) * commits.TURN / 4)
    told = [SimpleNamespace(step=number) for number in range(10)]
    stream, turns = iter([*told, SimpleNamespace(step=None)]), 1
    steps: list[int] = []
    while commits.decode(stream, steps):
        turns += 1
    assert steps == list(range(10)), "the text behind the last step is none"
    assert turns == 3


def test_an_arm_may_have_a_fixed_depth_and_no_unknown_words() -> None:
    assert commits.way("new", ".,--depth=3").depth == 3
    with pytest.raises(SystemExit):
        commits.way("new", ".,--deep=3")


def test_compare_two_checkouts(tmp_path: Path) -> None:
    prompts = tmp_path / "two.jsonl"
    kinds, turns = ("fox", "hen"), ["Tell me a story about a fox."]
    asked = [{"suite": kind, "id": kind, "turns": turns} for kind in kinds]
    prompts.write_text("".join(json.dumps(one) + "\n" for one in asked))
    command = [sys.executable, "-m", "tools.commits", str(TARGET), str(DRAFT)]
    command += ["--arm", f"alone={ROOT},--draft=none", "--prompts", str(prompts)]
    command += ["--arm", f"steady={ROOT},--plain,--kernels=off", "-n", "5", "-c", "512"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    told = r"^(.+): [\d.]+ tok/s \((\d+)\), × alone [\d.]+ \((\d+)\), steady [\d.]+ \((\d+)\)$"
    assert re.findall(told, said, re.MULTILINE) == [(kind, "5", "5", "5") for kind in kinds]
    steps, steady = re.findall(r"drafted in (\d+)% of (\d+) steps", said)
    assert 2 <= int(steps[1]) <= 8, "behind the first token of each answer"
    assert steady == ("0", "8"), "it decodes plainly"
    assert re.search(r"of 2 texts, equal to plain's in \d, steady's in \d", said)
    assert len(re.findall(r"^  lowest +[\d.]+  [\d.]+$", said, re.MULTILINE)) == 2
