"""Resolve a reference to a file on this machine, without the network."""

import os
from dataclasses import dataclass
from pathlib import Path

from localspec import paths
from localspec.errors import ModelNotFound
from localspec.gguf.names import DEFAULT_QUANT, ModelFiles, choose, models_among, parts_of
from localspec.hub import cache, packages
from localspec.hub.reference import CatalogName, Repository, parse
from localspec.paths import expanded
from localspec.text import listed, printable


@dataclass(frozen=True, slots=True)
class FoundModel:
    """The file that a reference resolves to. `path`: the file to open, the first part of a split
    model; `repository`: None for a plain file; `notices`: sentences about the choice."""

    path: Path
    repository: Repository | None = None
    notices: tuple[str, ...] = ()


Reference = str | os.PathLike[str] | None


def resolve(reference: Reference, *, offline: bool | None = None) -> Path:
    return find(reference, offline=offline).path


def find(
    reference: Reference, *, offline: bool | None = None, embedded: str = paths.EMBEDDED_TARGET
) -> FoundModel:
    """Find the file for a reference. `offline`: whether downloads are disabled, None reads
    HF_HUB_OFFLINE; `embedded`: the embedded file that `demo` and None stand for. Raises
    ModelNotFound, which says how to get the model, and UsageError for an invalid reference."""
    parsed = identify(reference)
    if parsed is None:
        return FoundModel(paths.embedded(embedded))
    if offline is None:
        offline = cache.offline_by_environment()
    try:
        if isinstance(parsed, Path):
            return FoundModel(_first_part(parsed))
        return _cached(parsed, str(reference), offline)
    except ModelNotFound:
        from localspec.hub import local

        if (listed_file := local.find_by_name(str(reference))) is not None:
            return FoundModel(listed_file)
        if os.path.isdir(folder := expanded(str(reference))):  # of two names, like a repository
            _first_part(folder)
        raise


def name_of(reference: Reference, path: Path) -> str:
    """The reference as typed, or the file's stem if that was a path or None."""
    by_file = reference is None or isinstance(parse(reference), Path)
    return path.stem if by_file else str(reference)


def identify(reference: Reference) -> Path | Repository | None:
    """Parse a reference into a path, a repository, or None for the built-in model. Raises as
    `parse`, and ModelNotFound for a name that neither the catalogue nor `localspec list` has."""
    parsed = parse(reference)
    if not isinstance(parsed, CatalogName):
        return parsed
    from localspec.hub import catalog, local

    known = catalog.load()
    entry = known.find(parsed.name)
    if entry is None:
        here = local.find_by_name(str(reference))
    else:  # a user's entry of that name may be another model
        here = packages.file_of(parsed) if entry.repo == packages.REPOSITORY else None
    return here or known.repository(parsed)


def _first_part(path: Path) -> Path:
    """The first part of the model at a path."""
    try:
        path.stat()  # from Python 3.14 on, `is_dir` does not tell
    except PermissionError as error:
        what = f"{_shown(path)} cannot be read: {error.strerror}."
        raise ModelNotFound(f"{what} Check the permissions of its folders.") from None
    except OSError:
        pass
    if path.is_dir():
        first = next(iter(sorted(path.glob("*.gguf"))), None)
        step = "It has no GGUF file: convert the model with llama.cpp's convert_hf_to_gguf.py."
        step = f"Name a file in it: {_shown(first)}." if first else step
        raise ModelNotFound(f"{_shown(path)} is a folder. {step}")
    if path.exists() and not path.is_file():
        raise ModelNotFound(f"{_shown(path)} is a pipe or a device. Name a .gguf file.")
    if path.is_symlink() and not path.exists():
        what = f"{_shown(path)} is a link to {_shown(path.readlink())}"
        raise ModelNotFound(f"{what}, which leads to no file. Download the file again.")
    if path.is_symlink() and len(parts_of(path.name)) == 1 < len(parts_of(path.resolve().name)):
        path = path.resolve()  # the other parts lie beside the one that it leads to
    parts = [path.with_name(name) for name in parts_of(path.name)]
    if not any(part.is_file() for part in parts):
        raise ModelNotFound(
            f"There is no file {_shown(path)}. Check the path, or choose one from 'localspec list'."
        )
    return parts[0]


def _shown(path: Path) -> str:
    return printable(str(path), 1000)


def _cached(wanted: Repository, typed: str, offline: bool) -> FoundModel:
    folders = cache.snapshots(wanted.id, wanted.revision)
    models = [
        (folder, models_among(cache.files_in(folder), named=wanted.file)) for folder in folders
    ]
    # The requested quantization in any revision is preferred to another one in this revision.
    strict = wanted if wanted.file else Repository(wanted.id, wanted.quant or DEFAULT_QUANT)
    broken: ModelFiles | None = None
    for attempt in (strict, wanted):
        for folder, choice in models:
            chosen = choose(choice, quant=attempt.quant, file=attempt.file)
            if chosen is None:
                continue
            if chosen.missing:
                broken = broken or chosen
                continue
            commit = cache.cached_commit(wanted.id, wanted.revision)
            notices = _notices(wanted, chosen, older=commit not in (None, folder.name))
            return FoundModel(folder / chosen.name, wanted, notices)
    from localspec.hub import catalog

    entry = catalog.load().entry_for(typed)
    typed += " --draft auto" if entry is not None and entry.drafts else ""
    raise _not_cached(wanted, typed, [m for _, ms in models for m in ms], broken, offline)


def _notices(wanted: Repository, chosen: ModelFiles, *, older: bool) -> tuple[str, ...]:
    notices = []
    if wanted.file is None and wanted.quant is None and chosen.quant != DEFAULT_QUANT:
        notices.append(f"{DEFAULT_QUANT} of {wanted.id} is not in the cache; using {chosen.name}.")
    if older:
        notices.append(f"{chosen.name} is from an older revision of {wanted.id}.")
    return tuple(notices)


def _not_cached(
    wanted: Repository,
    typed: str,
    there: list[ModelFiles],
    broken: ModelFiles | None,
    offline: bool,
) -> ModelNotFound:
    if broken is not None:
        missing = broken.missing
        what = f"{listed(missing)} of {wanted.id} {'is' if len(missing) == 1 else 'are'} missing"
    else:
        what = f"{typed.split()[0]} is not here"
    has = list(dict.fromkeys(model.quant or model.name for model in there if not model.missing))
    instead = f"; the cache has {listed(has)} of it" if has and broken is None else ""
    get = "Get it with" if not offline else "Get it, without --offline and HF_HUB_OFFLINE, with"
    return ModelNotFound(
        f"{what} (in {_shown(cache.cache_folder())}){instead}. {get} 'localspec pull {typed}'."
    )
