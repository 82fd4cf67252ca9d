"""A cache of one's own."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest
from huggingface_hub import constants

COMMIT = "c" * 40
OLDER = "b" * 40

Cached = Callable[..., Path]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache folder, empty; variables of whoever runs the tests do not count."""
    folder = tmp_path / "hub"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    return folder


@pytest.fixture
def cached(cache: Path) -> Cached:
    """Puts files into the cache as huggingface-hub does."""

    def put(repository: str, *names: str, commit: str = COMMIT, ref: str | None = "main") -> Path:
        folder = cache / f"models--{repository.replace('/', '--')}"
        snapshot = folder / "snapshots" / commit
        for name in names:
            content = f"{repository} {name}".encode()
            blob = folder / "blobs" / hashlib.sha256(content).hexdigest()
            blob.parent.mkdir(parents=True, exist_ok=True)
            blob.write_bytes(content)
            link = snapshot / name
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(Path("../" * (name.count("/") + 2) + f"blobs/{blob.name}"))
        if ref is not None:
            (folder / "refs").mkdir(parents=True, exist_ok=True)
            (folder / "refs" / ref).write_text(commit)
        return snapshot

    return put
