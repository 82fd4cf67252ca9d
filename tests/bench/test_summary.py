"""Figures from samples whose right values are known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from localspec.bench.report_tables import comparison
from localspec.bench.samples import Sample
from localspec.bench.speed_ups import mean_interval
from localspec.bench.summary import ALL, equalities, summarise
from tests.bench.samples import sample


def test_speed_is_all_tokens_over_all_seconds_by_the_median_turn() -> None:
    samples = [sample(turn=turn, seconds=s) for turn, s in enumerate((1.0, 2.0, 90.0))]
    samples.append(sample(prompt="p1", tokens=30, seconds=3.0))
    cell = summarise(samples).cell("plain", "story", 0.0)
    assert cell is not None
    assert (cell.prompts, cell.tokens, cell.seconds) == (2, 40.0, 5.0)
    assert cell.tokens_per_second == pytest.approx(8.0)


def test_speed_ups_are_on_common_prompts_and_their_mean_is_geometric() -> None:
    samples = []
    for suite, factor in (("story", 4.0), ("copy", 1.0)):
        for number in range(6):
            prompt = f"p{number}"
            samples.append(sample("plain", suite, prompt, seconds=1.0 + number))
            samples.append(sample("planner", suite, prompt, seconds=(1.0 + number) / factor))
        samples.append(sample("planner", suite, "nobody else's", seconds=1e6))
    summary = summarise(samples)
    for suite, expected in (("story", 4.0), ("copy", 1.0), (ALL, 2.0)):
        cell = summary.cell("planner", suite, 0.0)
        assert cell is not None
        assert cell.speed_up == pytest.approx(expected)
        assert cell.interval == pytest.approx((expected, expected))


def test_turns_are_paired() -> None:
    """A turn in which the machine is three times slower is so for both."""
    samples = [
        sample(arm, turn=turn, seconds=seconds * slow)
        for turn, slow in enumerate((1.0, 3.0, 3.0))
        for arm, seconds in (("plain", 1.0), ("planner", 0.5))
        if not (arm == "plain" and turn == 0)
    ]
    cell = summarise(samples).cell("planner", "story", 0.0)
    assert cell is not None
    assert cell.speed_up == pytest.approx(2.0)


def test_counts_become_rates_and_what_is_unknown_stays_so() -> None:
    known = sample(
        "planner",
        passes=4,
        drafted=20,
        tested=10,
        accepted=6,
        draft_seconds=0.25,
        verify_seconds=0.5,
        overhead_seconds=0.25,
    )
    peer = sample("llama-server draft 3", drafted=20, accepted=6)
    summary = summarise([known, peer, sample()])
    cell = summary.cell("planner", "story", 0.0)
    assert cell is not None
    assert (cell.acceptance, cell.kept, cell.tokens_per_pass) == (0.6, 0.3, 2.5)
    assert (cell.draft_share, cell.verify_share, cell.overhead_share) == (0.25, 0.5, 0.25)
    cell = summary.cell("llama-server draft 3", "story", 0.0)
    assert cell is not None
    assert (cell.acceptance, cell.kept, cell.tokens_per_pass) == (None, 0.3, None)
    assert cell.draft_share is None


def test_greedy_answers_are_compared_token_by_token() -> None:
    samples = [
        sample(token_ids=(1, 2, 3)),
        sample("planner", token_ids=(1, 2, 3)),
        sample("planner", turn=1, token_ids=(1, 9, 3)),
        sample("planner", turn=2, token_ids=(1, 2)),
        sample("planner", temperature=0.8, token_ids=(7,)),
        sample("planner", prompt="not plain's", token_ids=(7,)),
        sample("llama-server plain"),
    ]
    (found,) = equalities(samples)
    assert (found.arm, found.equal, found.total) == ("planner", 1, 3)
    assert found.divergences == (("story", "p0", 1), ("story", "p0", 2))


def test_six_prompts_by_hand() -> None:
    logs = np.array([0.1, 0.2, 0.3, 0.1, 0.2, 0.3])
    found = mean_interval([logs])
    assert found is not None
    half = 2.5706 * math.sqrt(0.008) / math.sqrt(6)
    assert found == pytest.approx((math.exp(0.2 - half), math.exp(0.2 + half)), rel=1e-3)
    assert mean_interval([logs[:5]]) is None


def test_what_lies_between_suites_is_no_doubt_unless_they_are_single_prompts() -> None:
    apart = [np.array([x, x]) for x in (0.0, 1.0, 2.0)]
    assert mean_interval(apart) == pytest.approx((math.e, math.e))
    single = [np.array([x]) for x in (0.0, 0.0, 0.0, 1.0, 1.0, 1.0)]
    found = mean_interval(single)
    assert found is not None
    assert found[0] < 1.0 < math.exp(0.5) < found[1]
    assert mean_interval([*apart, np.array([0.0])]) is None  # four suites say too little


SECONDS = {
    "plain": (1.0, 1.0),
    "planner": (0.5, 0.8),
    "llama-server plain": (1.25, 1.0),
    "llama-server draft 3 (default)": (0.625, 2.0),
    "llama-server ngram-mod": (1.0, 0.64),
}
"""Of ten tokens, on two suites."""


def samples() -> list[Sample]:
    return [
        sample(arm, suite, seconds=seconds)
        for arm, both in SECONDS.items()
        for suite, seconds in zip(("story", "copy"), both, strict=True)
    ]


def test_ratios_to_llama_server_with_their_mean_and_the_lowest() -> None:
    table = comparison(summarise(samples()), 0.0)
    assert table.header == ["", "all", "lowest", "suite"]
    assert table.rows == [
        ["planner ÷ llama-server plain", "1.77", "1.25", "copy"],
        ["planner ÷ llama-server draft 3 (default)", "1.77", "1.25", "story"],
        ["planner ÷ best configuration: ngram-mod", "1.26", "0.80", "copy"],
        ["planner ÷ best configuration of each suite", "1.00", "0.80", "copy"],
    ]
    only = [s for s in samples() if s.arm in ("plain", "planner")]
    assert comparison(summarise(only), 0.0).rows == []
