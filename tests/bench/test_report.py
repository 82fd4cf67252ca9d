"""The report in its three forms."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest

from localspec.bench.machine import this_machine
from localspec.bench.report import markdown
from localspec.bench.report_tables import table_text
from localspec.bench.summary import Table
from localspec.llama import devices
from localspec.llama.devices import Device
from tests.bench.samples import a_report, read


def test_json_comes_back_as_it_was() -> None:
    report = a_report()
    text = report.to_json()
    assert read(text) == report
    assert read(text).to_json() == text
    data = json.loads(text)
    assert len(data["pairs"][0]["samples"]) == 64
    assert data["pairs"][0]["summary"]["cells"][0]["arm"] == "plain"


def test_markdown_has_arms_as_rows_and_suites_as_columns() -> None:
    lines = markdown(a_report()).splitlines()
    assert "| arm | story | copy | all |" in lines
    assert "| model depth 2 | 2.00 | 2.00 | 2.00 (2.00–2.00) |" in lines
    assert '| a\\|b \\<i>&" | 1.25 | 1.25 | 1.25 (1.25–1.25) |' in lines
    assert "No interval, fewer than 6 prompts: story, copy." in lines
    assert any(line.startswith("(low–high): 95 %: Student's t") for line in lines)
    # Calibration before each answer.
    found = [line for line in lines if line.endswith("| 0.25 |")]
    assert len(found) == 2
    assert all(line.startswith("| a\\|b") for line in found)
    assert any(line.startswith("| model depth 3 | 20.0 | 75% | 2.50 |") for line in lines)
    assert "| model depth 2 | 0 of 8 | story p0 at 2, story p1 at 2, story p2 at 2, story p3 " in (
        " ".join(lines)
    )
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


SUITES = (
    *("coding", "extraction", "humanities", "math", "math_reasoning", "qa", "rag", "reasoning"),
    *("roleplay", "stem", "summarization", "translation", "writing"),
)
"""The categories of Spec-Bench."""


def shown(table: Table, width: int) -> list[str]:
    lines = table_text(table, width).splitlines()
    assert max(map(len, lines)) <= width
    return lines


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("arms", [1, 15])
def test_every_figure_is_shown_once_and_whole(arms: int, width: int) -> None:
    rows = [
        [f"arm {row}", *(f"1.6_{row:x}{column:x}" for column in range(13))] for row in range(arms)
    ]
    lines = shown(Table("Speeds", ["arm", *SUITES], rows, ["A note."]), width)
    words = [word for line in lines for word in line.split()]
    figures = [word for word in words if word.startswith("1.6_")]
    assert sorted(figures) == sorted(cell for row in rows for cell in row[1:])
    assert lines.count("A note.") == 1
    assert all(name in words for name in SUITES)
