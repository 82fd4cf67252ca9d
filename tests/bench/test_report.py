"""The report in its three forms."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest

from localspec.bench.machine import this_machine
from localspec.bench.report import markdown
from localspec.bench.report_tables import table_text, tables
from localspec.bench.summary import summarise
from localspec.llama import devices
from localspec.llama.devices import Device
from tests.bench.samples import a_report, read, sample


def test_json_comes_back_as_it_was() -> None:
    report = a_report()
    text = report.to_json()
    assert read(text) == report
    assert read(text).to_json() == text
    data = json.loads(text)
    assert len(data["pairs"][0]["samples"]) == 64
    assert data["pairs"][0]["summary"]["cells"][0]["arm"] == "plain"


def test_markdown_has_an_arm_over_all_suites_and_in_each() -> None:
    lines = markdown(a_report()).splitlines()
    header = (
        "| arm | × plain | 95 % | tok/s | accepted | per pass | draft | verify | own | before, s |"
    )
    assert lines.count(header) == 2
    for row in (
        "| model depth 2 | 2.00 | 2.00–2.00 | 20.0 | 75% | 2.50 | – | – | – | – |",
        "| model depth 2: copy | 2.00 | – | 20.0 | 75% | 2.50 | – | – | – | – |",
        '| a\\|b \\<i>&" | 1.25 | 1.25–1.25 | 12.5 | – | 1.25 | – | – | – | 0.25 |',
        "| model depth 2 | 0 of 8 | story p0 at 2, story p1 at 2, story p2 at 2, story p3 at 2 "
        "and 4 more |",
    ):
        assert row in lines
    assert any(line.startswith("No interval: fewer than 6 prompts") for line in lines)
    assert any(line.startswith("95 %: Student's t") for line in lines)
    assert any("arm 'broken' failed" in line for line in lines)
    assert any("SHA-256 " + "ab" * 32 in line for line in lines)
    # Every table is rectangular.
    for before, after in pairwise(lines):
        if before.startswith("|") and after.startswith("|"):
            assert before.replace("\\|", "").count("|") == after.replace("\\|", "").count("|")


def test_gpus_are_those_that_llama_can_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of AMD, Intel or Apple, too, of which NVIDIA's tool knows nothing."""
    cpu, gpu = Device("CPU", "A CPU", "CPU", 1, 1), Device("Vulkan0", "A GPU", "GPU", 1, 1)
    monkeypatch.setattr(devices, "devices", lambda: [cpu, gpu, gpu])
    assert this_machine(1).gpu == "A GPU, A GPU"


KINDS = ("summarization", "math_reasoning")
"""Long names of Spec-Bench."""
ARMS = ("planner", "planner, first session", "llama-server draft 3 (default)")


@pytest.mark.parametrize("width", [80, 200])
def test_every_figure_fits_the_terminal_whole(width: int) -> None:
    """The planner suite by suite, others over all."""
    samples = [
        sample(
            arm, kind, f"p{n}", seconds=1.0 / (2 + n), tested=9, accepted=7, calibration_seconds=1
        )
        for arm in (*ARMS, "plain")
        for kind in KINDS
        for n in range(6)
    ]
    table = tables(summarise(samples), whole=False)[0]
    assert [row[0] for row in table.rows] == [
        ARMS[0],
        *(f"planner: {k}" for k in KINDS),
        *ARMS[1:],
        "plain",
    ]
    lines = table_text(table, width).splitlines()
    assert max(map(len, lines)) <= width
    words = [word for line in lines[2:] for word in line.split()]
    assert [words.count(cell) for cell in ("1.00–1.00", "78%")] == [5, 6]
