"""`localspec rm`: out of the caches of localspec and huggingface-hub, and nowhere else."""

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
"""Variable, folder, whose it is, and what to do."""


@dataclass(frozen=True, slots=True)
class Removal:
    """What would be removed, and its bytes."""

    what: str
    files: tuple[Path, ...]
    freed: int
    _act: Callable[[], object] = field(repr=False)

    def execute(self) -> None:
        try:
            self._act()
        except OSError as error:
            raise _undeletable(error.filename or self.files[0], error.strerror) from None
        left = [path for path in self.files if path.exists()]
        if left:  # the client only logs what it may not delete
            raise _undeletable(left[0], "permission denied")


def plan(reference: str) -> Removal:
    """What removing a model means: all of `user/repo`, unfinished downloads included, or
    `user/repo:quant`, a name of the catalogue, or a path in a cache. A ModelNotFound if there is
    nothing of it, a UsageError if it is not in a cache of localspec's or huggingface-hub's."""
    wanted = identify(reference)
    if wanted is None:
        raise UsageError("The built-in pair is a part of localspec. Choose another model.")
    if isinstance(wanted, Path):
        return _file(wanted)
    try:
        return _cached(wanted, reference)
    except ModelNotFound:
        if not packages.is_meant(wanted) or packages.installed() is None:
            raise
        raise UsageError(f"{packages.NAME} {packages.REMOVAL}") from None


def _cached(wanted: Repository, typed: str) -> Removal:
    info, repository = _scan(wanted)
    files = [
        (file.file_path.relative_to(revision.snapshot_path).as_posix(), file)
        for revision in repository.revisions
        for file in revision.files
    ]
    whole = wanted.quant is None and wanted.file is None
    selected = [file for _, file in files]
    if not whole:
        # A model may have other names in other revisions, but only one at a time is meant.
        models = models_among({name for name, _ in files}, named=wanted.file)
        chosen = choose(models, quant=wanted.quant, file=wanted.file)
        selected = [] if chosen is None else [one for name, one in files if name in chosen.files]
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
    # The client leaves the folders of files that were deleted one by one.
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
        # By folder: on some systems the case of a name does not matter, and here it must.
        if repository.repo_path == real:
            if real.is_symlink():
                raise UsageError(
                    f"{real} is a link to another place, {real.resolve()}. Remove it yourself."
                )
            # The client finds revisions by commit alone, which a copy of the repository shares.
            return replace(info, repos=frozenset({repository})), repository
    if folder.exists():
        raise LocalspecError(
            f"What the cache has of {wanted.id} is damaged, so what belongs to it is not certain. "
            f"Remove the folder {folder} yourself."
        )
    raise nothing


def _require_inside(repository: CachedRepoInfo, files: list[CachedFileInfo]) -> None:
    """Refuse what a link in the cache leads out of it to."""
    inside = repository.repo_path
    for file in files:
        parent = file.blob_path.parent.resolve()
        if inside not in (parent, *parent.parents):
            raise UsageError(
                f"{file.file_path} is a link to {file.blob_path}, which is not in the cache. "
                "Remove the link yourself."
            )


def _file(path: Path) -> Removal:
    if not path.exists():
        raise ModelNotFound(f"There is no file {printable(str(path), 1000)}. Check the path.")
    place = Path(os.path.abspath(path))
    inside = place.parent.resolve() / place.name
    hub = cache.cache_folder().resolve()
    if hub in inside.parents:
        pieces = inside.relative_to(hub).parts
        if len(pieces) > 3 and pieces[0].startswith("models--") and pieces[1] == "snapshots":
            user, _, name = pieces[0].removeprefix("models--").partition("--")
            return _cached(Repository(f"{user}/{name}", file="/".join(pieces[3:])), str(path))
    own = paths.cache_folder().resolve()
    if own in inside.parents and inside.suffix == ".gguf" and not inside.is_symlink():
        parts = [inside.with_name(name) for name in parts_of(inside.name)]
        there = tuple(part for part in parts if part.is_file())
        return Removal(
            what=inside.name,
            files=there,
            freed=sum(part.stat().st_size for part in there),
            _act=lambda: list(map(Path.unlink, there)),
        )
    raise UsageError(f"{printable(str(path), 1000)} {_whose(inside)}")


def _whose(path: Path) -> str:
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
