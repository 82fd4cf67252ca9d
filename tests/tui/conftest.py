"""Each test of the chat has a home of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from pytest_textual_snapshot import SVGImageExtension  # type: ignore[import-untyped]

# It sets what older versions of syrupy read; these name the pictures "….raw".
SVGImageExtension.file_extension = "svg"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the history and the preferences of this test lie."""
    folder = tmp_path / "home"
    monkeypatch.setenv("LOCALSPEC_HOME", str(folder))
    for name in ("NO_COLOR", "COLORFGBG"):
        monkeypatch.delenv(name, raising=False)
    return folder


@pytest.fixture(autouse=True)
def looked_at_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the app is idle yet is looked at after each key, twice, every 20 ms: half of what
    these tests took was spent waiting for that."""
    monkeypatch.setattr("textual._wait.SLEEP_GRANULARITY", 0.01)
