"""Hugging Face's cache on disk, which other tools share: what it holds, without asking anyone.

    models--user--repo/refs/main                 the commit that "main" was when last asked
                      /snapshots/<commit>/name   links to …
                      /blobs/<sha256>            … the files

(https://huggingface.co/docs/huggingface_hub/guides/manage-cache)
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

from localspec.errors import UsageError
from localspec.gguf.names import stays_inside
from localspec.text import printable

COMMIT = re.compile(r"[0-9a-f]{40}")
_TRUE = ("1", "ON", "YES", "TRUE")


def offline_by_environment() -> bool:
    """Whether the user's environment forbids the network, by huggingface-hub's own rule."""
    found = os.environ.get("HF_HUB_OFFLINE") or os.environ.get("TRANSFORMERS_OFFLINE") or ""
    return found.upper() in _TRUE


def require_client() -> None:
    """Make sure that huggingface-hub can be imported: it reads its variables then.

    Raises:
        UsageError: one of them is nonsense.
    """
    try:
        import huggingface_hub.constants  # noqa: F401
    except ValueError as error:
        raise UsageError(
            f"huggingface-hub does not start: {printable(str(error))}. "
            "Check the variables that begin with HF_."
        ) from None


def cache_folder() -> Path:
    """Where the cache is: HF_HUB_CACHE, or `hub` under HF_HOME."""
    require_client()
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE).expanduser()


def repository_folder(repository: str) -> Path:
    """Where the files of `user/repo` are, if any; its name may be typed in capitals or not."""
    cache, name = cache_folder(), f"models--{repository.replace('/', '--')}"
    if not (cache / name).exists():
        with suppress(OSError):
            for path in cache.iterdir():
                if path.name.casefold() == name.casefold():
                    return path
    return cache / name


def snapshots(repository: str, revision: str) -> list[Path]:
    """Folders with cached files: the revision's, then those of others, the newest first."""
    folder = repository_folder(repository)
    commit = cached_commit(repository, revision)
    try:
        found = [path for path in (folder / "snapshots").iterdir() if path.is_dir()]
    except OSError:
        return []
    return sorted(found, key=lambda path: (path.name == commit, _changed(path)), reverse=True)


def cached_commit(repository: str, revision: str) -> str | None:
    """The commit that a revision was when it was last asked for."""
    if COMMIT.fullmatch(revision):
        return revision
    if not stays_inside(revision):
        return None
    try:
        text = (repository_folder(repository) / "refs" / revision).read_text(encoding="ascii")
    except (OSError, ValueError):
        return None
    return text if COMMIT.fullmatch(text) else None


def files_in(snapshot: Path) -> list[str]:
    """Names of the GGUF files in it, as in the repository; links to nothing are left out."""
    return sorted(
        path.relative_to(snapshot).as_posix()
        for path in snapshot.rglob("*")
        if path.suffix.lower() == ".gguf" and path.is_file()
    )


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
