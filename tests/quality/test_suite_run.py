"""Questions with and without speculation, on the built-in pair."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from localspec import Drafting, Engine, SamplingParams
from localspec.quality.items import SuiteItem
from localspec.quality.suite_run import (
    ItemDifference,
    SuiteOutcome,
    WayScore,
    outcome_text,
    run_suite,
    wilson,
)
from localspec.verify.subject import GREEDY, PLAIN, Subject
from tests.cli.conftest import Cli
from tests.cli.conftest import cli as cli
from tests.support.sessions import module_pair

ITEMS = [
    SuiteItem("fox", "Tell me a story about a fox.", 24, lambda text: "fox" in text),
    SuiteItem("cat", "Tell me a story about a cat.", 24, lambda text: "no such word" in text),
]

engine = module_pair(context=512, threads=1, exact=True)


def run_items(
    engine: Engine, drafting: Drafting, sampling: SamplingParams = GREEDY
) -> SuiteOutcome:
    outcome = SuiteOutcome({"plain": WayScore(PLAIN), "here": WayScore(drafting)})
    run_suite(Subject(engine, lambda text: None), ITEMS, sampling, outcome)
    return outcome


def test_exact_answers_are_equal(engine: Engine) -> None:
    outcome = run_items(engine, Drafting(drafter="model", depth=3))
    here, plain = outcome.ways["here"], outcome.ways["plain"]
    assert (outcome.complete, outcome.items, outcome.noise) == (True, 2, 0.0)
    assert here.right == plain.right
    assert not plain.right[1]
    assert (here.differences, here.tokens) == ([], plain.tokens)
    assert plain.tokens > 20


def test_questions_beyond_the_context_are_counted(engine: Engine) -> None:
    outcome = SuiteOutcome({"plain": WayScore(PLAIN)})
    items = [*[replace(ITEMS[1], max_tokens=512)] * 2, ITEMS[0]]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("localspec.quality.suite_run.rounding_distances", lambda *_: [0.25])
        run_suite(Subject(engine, lambda text: None), items, GREEDY, outcome)
    assert (outcome.items, outcome.left_out, outcome.noise) == (1, 2, 0.25)
    assert "too short: 2. Raise --ctx" in outcome_text("tales", outcome.as_dict())


def test_different_answer_is_a_fault(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Subject.answer

    def wrong(self: Subject, *args: object, **named: object) -> object:
        said = real(self, *args, **named)  # type: ignore[arg-type]
        if args[2] == Drafting():
            object.__setattr__(said, "tokens", (*said.tokens[:5], 9, *said.tokens[6:]))
        return said

    monkeypatch.setattr(Subject, "answer", wrong)
    outcome = run_items(engine, Drafting())
    assert [one.position for one in outcome.ways["here"].differences] == [5, 5]
    assert len(outcome.faults) == 2
    assert "here differs from plain decoding at token 5 of fox" in outcome.faults[0]
    assert "here differs" in outcome_text("tales", outcome.as_dict())


def test_sampled_answers_are_only_scored(engine: Engine) -> None:
    outcome = run_items(engine, Drafting(), SamplingParams(temperature=0.8, seed=3))
    assert len(outcome.ways["here"].right) == 2
    assert outcome.as_dict()["ways"]["here"]["differences"] == []


def test_lossy_rules_and_rounding_are_no_faults() -> None:
    far, near = (ItemDifference("one", 3, gap, True, False) for gap in (2.0, 0.1))
    ways = {
        "plain": WayScore(PLAIN),
        "near": WayScore(Drafting(), differences=[near]),
        "typical": WayScore(Drafting(rule="typical"), differences=[far]),
    }
    outcome = SuiteOutcome(ways, noise=0.5)
    assert outcome.faults == []
    told = outcome_text("tales", outcome.as_dict())
    assert "one from token 3, 0.1000 logits apart: right became wrong" in told
    for noise in (0.05, math.nan):
        assert len(SuiteOutcome(ways, noise=noise).faults) == 1


def test_wilson_intervals() -> None:
    assert wilson(5, 10) == pytest.approx((0.2366, 0.7634), abs=1e-4)
    assert wilson(0, 0) == (0.0, 1.0)
    assert wilson(0, 6)[0] == 0.0


def test_eval_command(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "questions.jsonl"
    path.write_text(json.dumps({"question": "Two and two?", "answer": "#### 4"}) + "\n")
    cli("eval", "mmlu", "--file", str(path)).refused("Line 1")
    done = cli("eval", "gsm8k", "--file", str(path), "--ctx", "512", "-t", "1", "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert (found["suite"], found["ways"]["localspec"]["of"]) == ("gsm8k", 1)
    lines = cli("eval", "gsm8k", "--file", str(path), "-c", "512", "-t", "1").out.splitlines()
    assert lines[0] == "gsm8k, 1 question"
    assert lines[2].endswith("× plain")
