"""`localspec rm`: delete models, only from the caches of localspec and huggingface-hub."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from localspec import paths
from localspec.errors import LocalspecError, ModelNotFound, UsageError
from localspec.gguf.names import choose, models_among, parts_of
from localspec.hub import cache, packages
from localspec.hub.reference import Repository
from localspec.hub.resolution import identify
from localspec.text import printable

if TYPE_CHECKING:
    from huggingface_hub import CachedFileInfo, CachedRepoInfo, DeleteCacheStrategy, HFCacheInfo

_OTHERS = (
    ("OLLAMA_MODELS", "~/.ollama", "ollama", "Remove it with 'ollama rm'."),
    ("", "~/.lmstudio", "LM Studio", "Remove it there."),
    ("", "~/.cache/lm-studio", "LM Studio", "Remove it there."),
    ("LLAMA_CACHE", "~/.cache/llama.cpp", "llama.cpp", "Remove the file yourself."),
)
"""Environment variable, folder, owner, and advice."""


@dataclass(frozen=True, slots=True)
class Removal:
    """A planned removal. `freed`: bytes."""

    what: str
    files: tuple[Path, ...]
    freed: int
    _act: Callable[[], object] = field(repr=False)

    def execute(self) -> None:
        try:
            self._act()
        except OSError as error:
            raise _undeletable(error.filename or self.files[0], error.strerror) from None
        remaining = [path for path in self.files if path.exists()]
        if remaining:  # the client only logs files that it could not delete
            raise _undeletable(remaining[0], "permission denied")


def plan(reference: str) -> Removal:
    """Plan the removal of `user/repo` with unfinished downloads, or of `user/repo:quant`, a
    catalogue name, or a path in a cache. Raises ModelNotFound if nothing matches, and UsageError if
    the file is in no cache of localspec or huggingface-hub."""
    wanted = identify(reference)
    if wanted is None:
        raise UsageError("The built-in pair is a part of localspec. Choose another model.")
    if isinstance(wanted, Path):
        return _plan_file(wanted)
    try:
        return _plan_cached(wanted, reference)
    except ModelNotFound:
        if not packages.is_packaged(wanted) or packages.installed() is None:
            raise
        raise UsageError(f"{packages.NAME} {packages.REMOVAL}") from None


def _plan_cached(wanted: Repository, typed: str) -> Removal:
    info, repository = _scan(wanted)
    files = [
        (file.file_path.relative_to(revision.snapshot_path).as_posix(), file)
        for revision in repository.revisions
        for file in revision.files
    ]
    whole = wanted.quant is None and wanted.file is None
    selected = [file for _, file in files]
    if not whole:
        # Revisions may name a model differently; only one of its names is removed.
        models = models_among({name for name, _ in files}, named=wanted.file)
        chosen = choose(models, quant=wanted.quant, file=wanted.file)
        selected = [] if chosen is None else [file for name, file in files if name in chosen.files]
    if not selected and not whole:
        raise ModelNotFound(
            f"The cache has no {printable(wanted.file or wanted.quant or '')} of {wanted.id}. "
            f"'localspec rm {wanted.id}' removes all that it has, unfinished downloads included."
        )
    _require_inside(repository, selected)
    if len(selected) == len(files):
        strategy = info.delete_revisions(*(r.commit_hash for r in repository.revisions))
        unfinished = sum(
            part.stat().st_size for part in (repository.repo_path / "blobs").glob("*.incomplete")
        )
    else:
        strategy, unfinished = info.delete_files(*selected), 0
    return Removal(
        what=wanted.id if whole else f"{wanted.id}:{wanted.file or wanted.quant}",
        files=tuple(sorted({file.file_path for file in selected})) or (repository.repo_path,),
        freed=strategy.expected_freed_size + unfinished,
        _act=lambda: _execute(strategy, repository),
    )


def _execute(strategy: DeleteCacheStrategy, repository: CachedRepoInfo) -> None:
    strategy.execute()
    # The client leaves empty folders when it deletes single files.
    for snapshot in (revision.snapshot_path for revision in repository.revisions):
        for folder, _, _ in os.walk(snapshot, topdown=False):
            if folder != str(snapshot) and not os.listdir(folder):
                os.rmdir(folder)


def _scan(wanted: Repository) -> tuple[HFCacheInfo, CachedRepoInfo]:
    cache.require_client()
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    folder = cache.repository_folder(wanted.id)
    nothing = ModelNotFound(
        f"{wanted.id} is not in {cache.cache_folder()}. 'localspec list' shows the models here."
    )
    try:
        info = scan_cache_dir(cache.cache_folder())
    except (CacheNotFound, ValueError):
        raise nothing from None
    real = folder.parent.resolve() / folder.name
    for repository in info.repos:
        # Compare folders: file systems may ignore case, but the client's names do not.
        if repository.repo_path == real:
            if real.is_symlink():
                raise UsageError(
                    f"{real} is a link to another place, {real.resolve()}. Remove it yourself."
                )
            # The client looks up revisions by commit only, and copied repositories share commits.
            return replace(info, repos=frozenset({repository})), repository
    if folder.exists():
        raise LocalspecError(
            f"The cache folder of {wanted.id} is damaged. Remove it yourself: {folder}."
        )
    raise nothing


def _require_inside(repository: CachedRepoInfo, files: list[CachedFileInfo]) -> None:
    """Refuse files that a link in the cache places outside it."""
    inside = repository.repo_path
    for file in files:
        parent = file.blob_path.parent.resolve()
        if inside not in (parent, *parent.parents):
            raise UsageError(
                f"{file.file_path} is a link to {file.blob_path}, which is not in the cache. "
                "Remove the link yourself."
            )


def _plan_file(path: Path) -> Removal:
    if not path.exists():
        raise ModelNotFound(f"There is no file {printable(str(path), 1000)}. Check the path.")
    place = Path(os.path.abspath(path))
    inside = place.parent.resolve() / place.name
    hub = cache.cache_folder().resolve()
    if hub in inside.parents:
        pieces = inside.relative_to(hub).parts
        if len(pieces) > 3 and pieces[0].startswith("models--") and pieces[1] == "snapshots":
            user, _, name = pieces[0].removeprefix("models--").partition("--")
            return _plan_cached(Repository(f"{user}/{name}", file="/".join(pieces[3:])), str(path))
    own = paths.cache_folder().resolve()
    if own in inside.parents and inside.suffix == ".gguf" and not inside.is_symlink():
        parts = [inside.with_name(name) for name in parts_of(inside.name)]
        existing = tuple(part for part in parts if part.is_file())
        return Removal(
            what=inside.name,
            files=existing,
            freed=sum(part.stat().st_size for part in existing),
            _act=lambda: list(map(Path.unlink, existing)),
        )
    raise UsageError(f"{printable(str(path), 1000)} {_not_removable(inside)}")


def _not_removable(path: Path) -> str:
    packaged = packages.installed()
    if packaged is not None and packaged.resolve() == path.resolve():
        return packages.REMOVAL
    for variable, folder, owner, advice in _OTHERS:
        for place in (os.environ.get(variable), folder):
            if place and paths.expanded(place).resolve() in path.parents:
                return f"belongs to {owner}, whose files localspec never touches. {advice}"
    return (
        "is not in a cache of localspec's or Hugging Face's, and nothing else is touched. "
        "Remove the file yourself."
    )


def _undeletable(path: str | Path, why: str | None) -> LocalspecError:
    return LocalspecError(
        f"{printable(str(path), 1000)} cannot be removed: {why}. Check its permissions."
    )
