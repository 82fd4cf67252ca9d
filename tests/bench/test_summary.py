"""Figures from samples whose right values are known, and the report in its two forms."""

import json
import math
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import ttest_ind

from localspec.bench import output_folder
from localspec.bench.machine import this_machine
from localspec.bench.report import figures, report_text, table_text
from localspec.bench.samples import Sample
from localspec.bench.summary import ALL, Cell, equalities, mean_interval, summarise
from localspec.llama import devices
from localspec.llama.devices import Device
from tests.bench.samples import a_report, read, sample


def cell_of(samples: list[Sample], arm: str, suite: str = "story") -> Cell:
    wanted = (arm, suite, 0.0)
    cells = summarise(samples).cells
    return next(one for one in cells if (one.arm, one.suite, one.temperature) == wanted)


def test_speed_is_tokens_by_median_seconds() -> None:
    samples = [sample(turn=turn, seconds=s) for turn, s in enumerate((1.0, 2.0, 90.0))]
    cell = cell_of([*samples, sample(prompt="p1", tokens=30, seconds=3.0)], "plain")
    assert (cell.prompts, cell.tokens, cell.seconds) == (2, 40.0, 5.0)
    assert cell.tokens_per_second == pytest.approx(8.0)


def test_speed_ups_use_common_prompts_and_geometric_means() -> None:
    samples = []
    for suite, factor in (("story", 4.0), ("copy", 1.0)):
        for arm, share in (("plain", 1.0), ("auto", 1 / factor)):
            samples += [sample(arm, suite, f"p{n}", seconds=(1.0 + n) * share) for n in range(6)]
        samples.append(sample("auto", suite, "nobody else's", seconds=1e6))
    for suite, expected in (("story", 4.0), ("copy", 1.0), (ALL, 2.0)):
        cell = cell_of(samples, "auto", suite)
        assert cell.speed_up == pytest.approx(expected)
        assert cell.interval == pytest.approx((expected, expected))


def test_turns_are_paired() -> None:
    """A turn on a slow machine is slow for both arms."""
    samples = [
        sample(arm, turn=turn, seconds=seconds * slow)
        for turn, slow in enumerate((1.0, 3.0, 3.0))
        for arm, seconds in (("plain", 1.0), ("auto", 0.5))
        if not (arm == "plain" and turn == 0)
    ]
    assert cell_of(samples, "auto").speed_up == pytest.approx(2.0)


def test_rates_from_counts() -> None:
    known = sample("auto", passes=4, drafted=20, tested=10, accepted=6)
    peer = sample("llama-server draft 3", drafted=20, accepted=6)
    for one, rates in ((known, (0.6, 0.3, 2.5)), (peer, (None, 0.3, None))):
        cell = cell_of([known, peer, sample()], one.arm)
        assert (cell.acceptance, cell.kept, cell.tokens_per_pass) == rates


def test_greedy_answers_are_compared_by_token() -> None:
    samples = [
        sample(token_ids=(1, 2, 3)),
        sample("auto", token_ids=(1, 2, 3)),
        sample("auto", turn=1, token_ids=(1, 9, 3)),
        sample("auto", turn=2, token_ids=(1, 2)),
        sample("auto", temperature=0.8, token_ids=(7,)),
        sample("auto", prompt="not plain's", token_ids=(7,)),
        sample("llama-server plain"),
    ]
    (found,) = equalities(samples)
    assert (found.arm, found.equal, found.total) == ("auto", 1, 3)


def test_interval_of_six_prompts() -> None:
    logs = np.array([0.1, 0.2, 0.3, 0.1, 0.2, 0.3])
    found = mean_interval([logs])
    assert found is not None
    half = 2.5706 * math.sqrt(0.008) / math.sqrt(6)
    assert found == pytest.approx((math.exp(0.2 - half), math.exp(0.2 + half)), rel=1e-3)
    assert mean_interval([logs[:5]]) is None


def test_interval_over_suites() -> None:
    apart = [np.array([x, x]) for x in (0.0, 1.0, 2.0)]
    assert mean_interval(apart) == pytest.approx((math.e, math.e))
    single = [np.array([x]) for x in (0.0, 0.0, 0.0, 1.0, 1.0, 1.0)]
    found = mean_interval(single)
    assert found is not None
    assert found[0] < 1.0 < math.exp(0.5) < found[1]
    assert mean_interval([*apart, np.array([0.0])]) is None  # four suites say too little
    one, two = np.array([0.1, 0.4, 0.2]), np.array([0.3, 0.9, -0.2, 0.5])
    low, high = ttest_ind(one, -two, equal_var=False).confidence_interval()  # by Welch
    assert mean_interval([one, two]) == pytest.approx((math.exp(low / 2), math.exp(high / 2)))


def test_report_round_trip(tmp_path: Path) -> None:
    report = a_report()
    text = report.to_json()
    assert read(text) == report
    assert read(text).to_json() == text
    (pair,) = json.loads(text)["pairs"]
    assert (len(pair["samples"]), pair["summary"]["cells"][0]["arm"]) == (64, "plain")
    report.pairs[0].name = "model-\udcff"  # as of a file name that is not UTF-8
    output_folder.write(tmp_path, report.files())
    assert read((tmp_path / "report.json").read_text("utf-8")) == report


def test_whole_report() -> None:
    lines = report_text(a_report(), 100, whole=True).splitlines()
    words = [line.split() for line in lines]
    for row in (
        "model depth 2 2.00 2.00–2.00 20.0 75% 2.50 –",
        "model depth 2: copy 2.00 – 20.0 75% 2.50 –",
        'a|b <i>&" 1.25 1.25–1.25 12.5 – 1.25 0.25',
        "model depth 2: 0 of 8 greedy answers equal plain's",
    ):
        assert row.split() in words
    assert sum(line.startswith("No interval: fewer than 6 prompts") for line in lines) == 1
    assert any("arm 'broken' failed" in line for line in lines)
    assert any("SHA-256 " + "ab" * 32 in line for line in lines)


@pytest.mark.parametrize(
    "text", [report_text(a_report(), 200, whole=whole) for whole in (True, False)]
)
@pytest.mark.parametrize("note", ["95%: Student's t", "accepted: of tested", "before: seconds"])
def test_the_legend_is_printed_once(text: str, note: str) -> None:
    assert text.count("Figures, ") == 2
    assert text.count(f"\n{note}") == 1


def test_gpus_are_those_of_llama_cpp(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, gpu = Device("CPU", "A CPU", "CPU", 1, 1), Device("Vulkan0", "A GPU", "GPU", 1, 1)
    monkeypatch.setattr(devices, "devices", lambda: [cpu, gpu, gpu])
    assert this_machine(1).gpu == "A GPU, A GPU"


KINDS = ("summarization", "math_reasoning")
"""Long names of Spec-Bench."""
ARMS = ("auto", "auto, cold", "llama-server draft 3 (default)")


@pytest.mark.parametrize("width", [80, 200])
def test_table_fits_the_terminal(width: int) -> None:
    facts = {"tested": 9, "accepted": 7, "calibration_seconds": 1}
    samples = [
        sample(arm, kind, f"p{n}", seconds=1.0 / (2 + n), **facts)
        for arm, kind, n in product((*ARMS, "plain"), KINDS, range(6))
    ]
    table = figures(summarise(samples), 0.0, whole=False)
    names = [ARMS[0], *(f"auto: {kind}" for kind in KINDS), *ARMS[1:], "plain"]
    assert [row[0] for row in table.rows] == names
    lines = table_text(table, width).splitlines()
    assert max(map(len, lines)) <= width
    words = [word for line in lines[2:] for word in line.split()]
    assert [words.count(cell) for cell in ("1.00–1.00", "78%")] == [5, 6]
