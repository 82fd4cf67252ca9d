"""Figures from samples whose right values are known."""

from __future__ import annotations

import pytest

from localspec.bench.speed_ups import geometric_mean
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
    assert geometric_mean([2.0, 8.0]) == pytest.approx(4.0)


@pytest.mark.parametrize(("prompts", "known"), [(1, False), (5, False), (6, True)])
def test_fewer_than_six_prompts_have_no_interval(prompts: int, known: bool) -> None:
    samples = []
    for number in range(prompts):
        samples.append(sample(prompt=f"p{number}"))
        samples.append(sample("planner", prompt=f"p{number}", seconds=0.5))
    cell = summarise(samples).cell("planner", "story", 0.0)
    assert cell is not None
    assert cell.speed_up == pytest.approx(2.0)
    assert cell.compared == prompts
    assert (cell.interval is not None) is known


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


def test_prompts_count_alike_however_long() -> None:
    samples = [
        sample(),
        sample("planner", seconds=0.25),
        sample(prompt="long", tokens=1000, seconds=100.0),
        sample("planner", prompt="long", tokens=1000, seconds=100.0),
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
