"""The planner against the others, from samples whose ratios are known."""

from __future__ import annotations

from localspec.bench.report_tables import comparison_table
from localspec.bench.samples import Sample
from localspec.bench.summary import summarise
from tests.bench.samples import sample

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


def test_ratios_suite_by_suite_with_their_mean_and_the_lowest() -> None:
    table = comparison_table(summarise(samples()), 0.0)
    assert table.header == ["", "story", "copy", "all", "lowest"]
    assert table.rows == [
        ["planner ÷ plain", "2.00", "1.25", "1.58", "1.25"],
        ["planner ÷ llama-server plain", "2.50", "1.25", "1.77", "1.25"],
        ["planner ÷ llama-server draft 3 (default)", "1.25", "2.50", "1.77", "1.25"],
        ["planner ÷ best configuration: ngram-mod", "2.00", "0.80", "1.26", "0.80"],
        ["planner ÷ best configuration of each suite", "1.25", "0.80", "1.00", "0.80"],
    ]


def test_without_peers_only_plain_decoding_is_left() -> None:
    only = [s for s in samples() if s.arm in ("plain", "planner")]
    table = comparison_table(summarise(only), 0.0)
    assert [row[0] for row in table.rows] == ["planner ÷ plain"]
