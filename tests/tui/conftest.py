"""Each test of the chat has a home of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from pytest_textual_snapshot import SVGImageExtension  # type: ignore[import-untyped]

# It sets what older versions of syrupy read; these name the pictures "….raw".
SVGImageExtension.file_extension = "svg"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """For the history and preferences of this test."""
    folder = tmp_path / "home"
    monkeypatch.setenv("LOCALSPEC_HOME", str(folder))
    for name in ("NO_COLOR", "COLORFGBG"):
        monkeypatch.delenv(name, raising=False)
    return folder


@pytest.fixture(autouse=True)
def looked_at_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pilot looks every 20 ms whether the app is idle: half of a test's time."""
    monkeypatch.setattr("textual._wait.SLEEP_GRANULARITY", 0.01)
