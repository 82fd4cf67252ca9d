"""`make check` starts no process and no terminal: files that do are marked for `make nightly`."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parent
PROCESSES = re.compile(
    r"^(import (subprocess|pexpect)|from tests\.(cli|server)\.process import"
    r"|from tests\.tui\.(terminals|kills) import|.*\bsleep\()",
    re.MULTILINE,
)
NONE = {"test_tiers.py"}
"""`subprocess` is named there."""


def test_what_starts_processes_or_sleeps_is_nightly() -> None:
    unmarked = [
        str(path.relative_to(TESTS))
        for path in sorted(TESTS.rglob("test_*.py"))
        if path.name not in NONE
        and PROCESSES.search(text := path.read_text(encoding="utf-8"))
        and "pytest.mark.nightly" not in text
    ]
    assert unmarked == []
