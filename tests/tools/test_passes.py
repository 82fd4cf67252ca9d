"""The tables of `tools.passes`."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[2]


def test_the_tables() -> None:
    command = [sys.executable, "-m", "tools.passes", "demo", "--arms", "off,auto", "--loads", "1"]
    command += ["--sizes", "1,4", "--prompts", "64", "--contexts", "32", "--rounds", "2"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    rows = [line.split("|")[1].strip() for line in said.splitlines() if line.startswith("| ")]
    assert rows == ["kernels", "off", "auto"] * 2
    assert re.search(r"T\(1\) ÷ that: off [\d.]+, auto [\d.]+; T\(4\) ÷ that", said)
