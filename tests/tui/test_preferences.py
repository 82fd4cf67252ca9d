"""The chat's preferences."""

import os
import stat
from pathlib import Path

import pytest

from localspec.tui.session import preferences
from localspec.tui.session.preferences import Preferences
from tests.support.patches import fail_with


def written(data: bytes) -> Path:
    path = preferences.file()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def test_save_and_load() -> None:
    kept = Preferences(theme="nord", tokens=True, max_tokens=9, sampling={"temperature": 0.5})
    assert preferences.save(kept) is None
    assert preferences.load() == (kept, None)
    assert os.listdir(preferences.file().parent) == ["chat.json"]
    assert stat.S_IMODE(preferences.file().stat().st_mode) == 0o600
    written(b'{"theme": "nord", "later": [1, 2]}')  # by a later version
    assert preferences.load() == (Preferences(theme="nord"), None)


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"{", b"[1]", b"null", b"\xff\xfe", b"[" * 100_000, b'{"tokens": "perhaps"}'),
        *(b'{"sampling": {"temperature": "hot"}}', b'{"max_tokens": 1e400}'),
        # Somebody wrote these by hand: every answer would fail over them.
        *(b'{"sampling": {"temperature": -1}}', b'{"max_tokens": 0}', b'{"max_tokens": -5}'),
    ],
)
def test_broken_file_is_reported_and_replaced_by_defaults(data: bytes) -> None:
    path = written(data)
    found, trouble = preferences.load()
    assert found == Preferences()
    assert trouble == f"{path} could not be read, so the chat starts with its defaults."


def test_failed_write_keeps_the_old_file(monkeypatch: pytest.MonkeyPatch) -> None:
    preferences.save(Preferences(theme="nord"))
    full = fail_with(OSError(28, "No space left on device"))
    monkeypatch.setattr(Path, "write_bytes", full)
    assert "No space left on device" in (preferences.save(Preferences(theme="gruvbox")) or "")
    assert preferences.load() == (Preferences(theme="nord"), None)
