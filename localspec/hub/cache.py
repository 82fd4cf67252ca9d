"""Hugging Face's cache on disk, shared with other tools; read without the network.

    models--user--repo/refs/main                 the commit that "main" last pointed to
                      /snapshots/<commit>/name   links to …
                      /blobs/<sha256>            … the files

(https://huggingface.co/docs/huggingface_hub/guides/manage-cache)
"""

import os
import re
import shlex
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from localspec.errors import ModelInvalid, UsageError
from localspec.files import size_and_time
from localspec.gguf import description
from localspec.identity import sha256_of
from localspec.paths import expanded, home
from localspec.text import printable

COMMIT = re.compile(r"[0-9a-f]{40}")
_PREFIX = "models--"
CACHED = re.compile(rf"/{_PREFIX}([^/]+?)--([^/]+)/snapshots/[^/]+/(.+)$")
"""The path of a cached file: user, repository and name."""


def offline_by_environment() -> bool:
    """Whether HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE is set, by huggingface-hub's own rule."""
    value = os.environ.get("HF_HUB_OFFLINE") or os.environ.get("TRANSFORMERS_OFFLINE") or ""
    return value.upper() in ("1", "ON", "YES", "TRUE")


def require_client() -> None:
    """Import huggingface-hub, which then reads its variables. Raises UsageError if one is invalid.
    Empty ones count as unset, as in containers that pass all of them on."""
    for name in [n for n, value in os.environ.items() if n.startswith("HF_") and not value.strip()]:
        del os.environ[name]
    try:
        for name in ("HF_HUB_ETAG_TIMEOUT", "HF_HUB_DOWNLOAD_TIMEOUT"):
            if not re.fullmatch(r"\s*\d{1,9}\s*", value := os.environ.get(name, "10")):
                raise ValueError(f"{name} is '{value}', not a number of seconds")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about variables that it no longer reads
            import huggingface_hub.hf_api
        for name in ("HF_TOKEN_PATH", "SSL_CERT_FILE"):
            path = getattr(huggingface_hub.constants, name, os.environ.get(name)) or os.devnull
            known = os.path.isfile(path) or os.path.isdir(path) or path == os.devnull
            if os.path.exists(path) and not known:
                raise ValueError(f"{name} is {path}, a pipe or a device")
    except (ValueError, OSError, ImportError) as error:
        raise UsageError(
            f"huggingface-hub does not start: {printable(str(error))}. "
            "Check the variables that begin with HF_."
        ) from None


def cache_folder() -> Path:
    """The cache folder that huggingface-hub would use, without its slow import."""
    for name, inside in (("HF_HUB_CACHE", ""), ("HUGGINGFACE_HUB_CACHE", ""), ("HF_HOME", "hub")):
        value = os.environ.get(name)
        if value:
            return expanded(os.path.expandvars(value)) / inside
    user = Path(os.environ.get("XDG_CACHE_HOME") or home() / ".cache")
    return user / "huggingface" / "hub"


def repository_folder(repository: str) -> Path:
    """Folder of `user/repo`, ignoring case; it need not exist."""
    cache, name = cache_folder(), f"{_PREFIX}{repository.replace('/', '--')}"
    if not os.path.exists(cache / name):
        for path in folders_in(cache):
            if path.name.casefold() == name.casefold():
                return path
    return cache / name


def repositories() -> Iterator[str]:
    """Every `user/repo` with a folder in the cache."""
    for folder in folders_in(cache_folder()):
        user, _, name = folder.name.removeprefix(_PREFIX).partition("--")
        if folder.name.startswith(_PREFIX) and name:
            yield f"{user}/{name}"


def snapshots(repository: str, revision: str) -> list[Path]:
    """Snapshot folders: the revision's first, then others, newest first."""
    commit = cached_commit(repository, revision)
    found = folders_in(repository_folder(repository) / "snapshots")
    return sorted(
        found, key=lambda path: (path.name == commit, size_and_time(path)[1]), reverse=True
    )


def cached_commit(repository: str, revision: str) -> str | None:
    """The commit that a revision pointed to when it was last fetched."""
    if COMMIT.fullmatch(revision):
        return revision
    with suppress(OSError, ValueError):
        text = (repository_folder(repository) / "refs" / revision).read_text(encoding="ascii")
        return text if COMMIT.fullmatch(text) else None
    return None


def files_in(snapshot: Path) -> list[str]:
    """Names of GGUF files, as in the repository, without dangling links."""
    return sorted(
        path.relative_to(snapshot).as_posix()
        for path in snapshot.rglob("*")
        if path.suffix.lower() == ".gguf" and os.path.isfile(path)
    )


def require_usable(path: Path, *, head: bool = False, whole: bool = False) -> None:
    """As `description.require_usable`; for a file of this cache, the error has the commands that
    get it again. `whole`: read all of it, and compare its SHA-256 with its name."""
    try:
        description.require_usable(path, head=head)
        name = path.resolve().name
        if whole and len(name) == 64 and name != (found := sha256_of(path)):
            what = f"its SHA-256 is {found[:12]}…, not {name[:12]}…."
            raise ModelInvalid(f"{path.name} is damaged: {what}")
    except ModelInvalid as error:
        if (cached := CACHED.search(path.as_posix())) is None:
            raise
        again = shlex.quote("{}/{}:{}".format(*cached.groups()))
        get = f"'localspec rm {again}' and then 'localspec pull {again}' get it again."
        raise ModelInvalid(f"{error} {get}") from None


def folders_in(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.is_dir())
    except OSError:
        return []
