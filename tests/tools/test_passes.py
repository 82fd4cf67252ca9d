"""What `tools.passes` takes for a pass, and its tables."""

import sys
from pathlib import Path

import pytest

from tests.cli.process import finished
from tools.passes import Sample, typical

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[2]


def test_passes_without_their_cores_are_excluded() -> None:
    had = [Sample(seconds, 0.97) for seconds in (1.0, 2.0, 3.0)]
    assert typical([*had, Sample(9.0, 0.6), Sample(8.0, 0.5)]) == 2.0
    assert typical([Sample(4.0, 0.5)]) == 4.0
    assert typical([Sample(4.0, 0.2), Sample(5.0, 0.9)]) == 5.0


def test_tables() -> None:
    command = (sys.executable, "-m", "tools.passes", "demo", "--arms", "off,auto", "--loads", "1")
    sizes = ("--sizes", "1,4", "--prompts", "64", "--contexts", "32", "--rounds", "2")
    tables = finished(*sizes, command=command, cwd=ROOT).succeeded()
    rows = [line.split("|")[1].strip() for line in tables.splitlines() if line.startswith("| ")]
    assert rows == ["kernels", "off", "auto"] * 2
    assert "of 24 passes had their cores" in tables
