"""A cache of one's own."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from huggingface_hub import close_session, constants

from localspec.hub import catalog, remote
from tests.cli.conftest import _own_environment as _own_environment
from tests.cli.conftest import cli as cli
from tests.hub.pulled import content
from tests.hub.server import Hub, Repo, running

COMMIT = "c" * 40
OLDER = "b" * 40

Cached = Callable[..., Path]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache folder, empty; variables of whoever runs the tests do not count."""
    folder = tmp_path / "hub"
    monkeypatch.setenv("HF_HUB_CACHE", str(folder))
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


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub on this machine, which the client takes for huggingface.co; no waits."""
    with running() as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        template = f"{hub.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", os.devnull)
        monkeypatch.setattr(remote, "WAITS", (0.0,) * 5)
        yield hub
        close_session()


@pytest.fixture
def model(hub: Hub) -> bytes:
    """The content of user/repo:Q4_K_M, which the hub has."""
    data = content(1)
    hub.repos["user/repo"] = Repo(
        {"README.md": b"hello", "m-Q4_K_M.gguf": data, "m-Q8_0.gguf": b"other"}
    )
    return data


ENTRY = {
    "name": '"mine"',
    "family": '"Mine"',
    "parameters": "1_000",
    "repo": '"user/repo"',
    "licence": '"MIT"',
    "source": '"https://example.com"',
    "checked": '"2026-11-21"',
}


def entry(**changes: str | None) -> str:
    keys = {**ENTRY, **changes}
    return "[[model]]\n" + "".join(f"{k} = {v}\n" for k, v in keys.items() if v is not None)


@pytest.fixture
def own() -> Iterator[Path]:
    """The place of the user's catalogue, empty before and after."""
    file = catalog.user_file()
    file.parent.mkdir(parents=True, exist_ok=True)
    yield file
    file.unlink(missing_ok=True)
