"""Killed while it saves, the next start reads the session before or the new one, never a part."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.nightly

REPOSITORY = Path(__file__).parents[2]
PATIENCE = 300.0
"""Seconds until one that hangs fails: no measure of speed, as the machine may do other work."""


def test_fifty_kills(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.sessions.killed_while_saving", tmp_path, "50", "7"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 40, "four of five are in the middle of a file"
