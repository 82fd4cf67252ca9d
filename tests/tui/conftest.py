"""Fixtures that give each test of the chat a separate home folder."""

from pathlib import Path

import pytest
from pytest_textual_snapshot import SVGImageExtension  # type: ignore[import-untyped]

# It sets what older versions of syrupy read; these name the pictures "….raw".
SVGImageExtension.file_extension = "svg"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for the history and preferences of this test."""
    folder = tmp_path / "home"
    monkeypatch.setenv("LOCALSPEC_HOME", str(folder))
    for name in ("NO_COLOR", "COLORFGBG"):
        monkeypatch.delenv(name, raising=False)
    return folder


@pytest.fixture(autouse=True)
def poll_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Poll more often: the pilot checks every 20 ms whether the app is idle, half a test's time."""
    monkeypatch.setattr("textual._wait.SLEEP_GRANULARITY", 0.01)
