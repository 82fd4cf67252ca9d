"""`localspec rm`: delete models, only from the caches of localspec and huggingface-hub."""

import os
import shutil
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from localspec import paths
from localspec.errors import ModelNotFound, UsageError
from localspec.files import explaining, size_and_time
from localspec.gguf.names import choose, models_among, parts_of
from localspec.hub import cache, packages
from localspec.hub.reference import Repository
from localspec.hub.resolution import identify
from localspec.text import printable


@dataclass(frozen=True, slots=True)
class Removal:
    """A planned removal. `freed`: bytes; `_gone`: files, or the folder that has all of them;
    `_below`: folders to delete as well if they are then empty, inner ones first."""

    what: str
    files: tuple[Path, ...]
    freed: int
    _gone: tuple[Path, ...] = field(repr=False)
    _below: tuple[Path, ...] = field(default=(), repr=False)

    def execute(self) -> None:
        for path in self._gone:
            with explaining(path, "Check its permissions.", "removed"):
                if path.is_dir():
                    with suppress(FileNotFoundError):  # another process removes it, too
                        shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)
        for folder in self._below:
            with suppress(OSError):
                folder.rmdir()


def plan(reference: str) -> Removal:
    """Plan the removal of `user/repo` with unfinished downloads, or of `user/repo:quant`, a
    catalogue name, or a path in a cache. Raises ModelNotFound if nothing matches, and UsageError if
    the file is in no cache of localspec or huggingface-hub."""
    wanted = identify(reference)
    if wanted is None:
        raise UsageError("The built-in pair is a part of localspec. Choose another model.")
    if isinstance(wanted, Path):
        return _plan_file(wanted)
    return _plan_cached(wanted)


def _plan_cached(wanted: Repository) -> Removal:
    folder = cache.repository_folder(wanted.id)
    if folder.is_symlink():
        raise UsageError(
            f"{folder} is a link to another place, {folder.resolve()}. Remove it yourself."
        )
    if not folder.exists():
        raise ModelNotFound(
            f"{wanted.id} is not in {cache.cache_folder()}. 'localspec list' shows the models here."
        )
    snapshots = cache.folders_in(folder / "snapshots")
    files = {
        path: path.relative_to(snapshot).as_posix()
        for snapshot in snapshots
        for path in sorted(snapshot.rglob("*"))
        if not path.is_dir()
    }
    chosen, whole = None, wanted.quant is None and wanted.file is None
    if not whole:
        # Revisions may name a model differently; only one of its names is removed.
        models = models_among(set(files.values()), named=wanted.file)
        chosen = choose(models, quant=wanted.quant, file=wanted.file)
    selected = [p for p, name in files.items() if whole or (chosen and name in chosen.files)]
    if not selected and not whole:
        raise ModelNotFound(
            f"The cache has no {printable(wanted.file or wanted.quant or '')} of {wanted.id}. "
            f"'localspec rm {wanted.id}' removes all that it has, unfinished downloads included."
        )
    _require_inside(folder, selected)
    used = {path.resolve() for path in files if path not in selected}
    gone = {path.resolve() for path in selected} - used
    if not used:
        gone |= {path.resolve() for path in (folder / "blobs").glob("*")}
    tops = set(snapshots)
    inner = {p for path in selected for p in path.parents if not tops.isdisjoint(p.parents)}
    return Removal(
        what=wanted.id if whole else f"{wanted.id}:{wanted.file or wanted.quant}",
        files=tuple(sorted(selected)) or (folder,),
        freed=sum(size_and_time(path)[0] for path in gone),
        _gone=(*selected, *gone) if used else (folder,),
        _below=tuple(sorted(inner, reverse=True)),
    )


def _require_inside(folder: Path, files: list[Path]) -> None:
    """Refuse files that a link in the cache places outside it."""
    for file in files:
        if folder.resolve() not in (real := file.resolve()).parents:
            raise UsageError(
                f"{file} is a link to {real}, which is not in the cache. Remove the link yourself."
            )


def _plan_file(path: Path) -> Removal:
    if not path.exists():
        raise ModelNotFound(f"There is no file {printable(str(path), 1000)}. Check the path.")
    place = Path(os.path.abspath(path))
    inside = place.parent.resolve() / place.name
    hub = cache.cache_folder().resolve()
    within = f"/{inside.relative_to(hub).as_posix()}" if hub in inside.parents else ""
    if cached := cache.CACHED.fullmatch(within):
        user, name, file = cached.groups()
        return _plan_cached(Repository(f"{user}/{name}", file=file))
    own = paths.cache_folder().resolve()
    if own in inside.parents and inside.suffix == ".gguf" and not inside.is_symlink():
        parts = [inside.with_name(name) for name in parts_of(inside.name)]
        existing = tuple(part for part in parts if part.is_file())
        return Removal(
            what=inside.name,
            files=existing,
            freed=sum(part.stat().st_size for part in existing),
            _gone=existing,
        )
    packaged = packages.installed()
    why = (
        "is not in a cache of localspec's or Hugging Face's, and nothing else is deleted. Remove "
        "the file yourself, or with the program that it belongs to, as in 'ollama rm'."
    )
    if packaged is not None and packaged.resolve() == inside.resolve():
        why = packages.REMOVAL
    raise UsageError(f"{printable(str(path), 1000)} {why}")
