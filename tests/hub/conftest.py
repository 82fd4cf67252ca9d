"""A separate cache for each test."""

import hashlib
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from huggingface_hub import close_session, constants

from localspec import LocalspecError
from localspec.hub import catalog, remote
from tests.cli.conftest import _own_environment as _own_environment
from tests.cli.conftest import cli as cli
from tests.hub.server import Hub, Repo, running

COMMIT = "c" * 40
OLDER = "b" * 40
SIZE = 300_000

Cached = Callable[..., Path]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder, without the user's variables."""
    folder = tmp_path / "hub"
    monkeypatch.setenv("HF_HUB_CACHE", str(folder))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    return folder


def cache_file(
    cache: Path, repository: str, name: str, content: bytes, commit: str, ref: str | None = "main"
) -> Path:
    """Put a file into a cache as huggingface-hub does; return the link to it."""
    folder = cache / f"models--{repository.replace('/', '--')}"
    blob = folder / "blobs" / hashlib.sha256(content).hexdigest()
    link = folder / "snapshots" / commit / name
    for path in (blob, link):
        path.parent.mkdir(parents=True, exist_ok=True)
    blob.write_bytes(content)
    link.symlink_to(os.path.relpath(blob, link.parent))
    if ref is not None:
        (folder / "refs").mkdir(exist_ok=True)
        (folder / "refs" / ref).write_text(commit)
    return link


@pytest.fixture
def cached(cache: Path) -> Cached:
    """Puts files into the cache; returns the folder of their commit."""

    def put(repository: str, *names: str, commit: str = COMMIT) -> Path:
        for name in names:
            cache_file(cache, repository, name, f"{repository} {name}".encode(), commit)
        return cache / f"models--{repository.replace('/', '--')}" / "snapshots" / commit

    return put


def content(seed: int, size: int = SIZE) -> bytes:
    return random.Random(seed).randbytes(size)


def complete_files(cache: Path) -> list[Path]:
    """The files in the cache that other tools would use."""
    files = [p for p in cache.rglob("*") if p.is_file() and p.parent.name != "refs"]
    return [p for p in files if p.suffix not in (".lock", ".incomplete", ".TAG")]


def partial_files(cache: Path) -> list[Path]:
    return list(cache.glob("*/blobs/*.incomplete"))


def refusal(
    call: Callable[..., object],
    name: object,
    why: str,
    kind: type[LocalspecError] = LocalspecError,
    **options: object,
) -> LocalspecError:
    """The error of `call(name, **options)`, of that kind, and with that pattern in it."""
    with pytest.raises(kind, match=why) as caught:
        call(name, **options)
    return caught.value


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A local hub that replaces huggingface.co, without waits between attempts."""
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
    """Add user/repo to the hub; return the content of its Q4_K_M."""
    data = content(1)
    files = {"README.md": b"hello", "m-Q4_K_M.gguf": data, "m-Q8_0.gguf": b"other"}
    hub.repos["user/repo"] = Repo(files)
    return data


ENTRY = {"name": '"mine"', "family": '"Mine"', "parameters": "1_000", "repo": '"user/repo"'}
ENTRY |= {"licence": '"MIT"', "source": '"https://example.com"', "checked": '"2026-11-21"'}


def entry(**changes: str | None) -> str:
    keys = {**ENTRY, **changes}
    return "[[model]]\n" + "".join(f"{k} = {v}\n" for k, v in keys.items() if v is not None)


@pytest.fixture
def user_catalogue() -> Iterator[Path]:
    """The path of the user's catalogue, which is deleted afterwards."""
    file = catalog.user_file()
    file.parent.mkdir(parents=True, exist_ok=True)
    yield file
    file.unlink(missing_ok=True)
