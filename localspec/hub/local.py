"""The models on this machine: where GGUF files are found (Python packages, caches of several tools,
folders), and what they contain.

Read-only, and trusts nothing: trees may be huge or contain loops, links may dangle, and manifests
may name files outside their folder.
"""

import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import platformdirs
from pydantic import TypeAdapter, ValidationError

from localspec import paths
from localspec.files import read_file, size_and_time
from localspec.gguf.description import ModelFacts, describe
from localspec.gguf.names import models_among, parts_of, stays_inside
from localspec.gguf.reader import MAX_PARTS
from localspec.hub import cache, packages
from localspec.identity import fingerprint
from localspec.llama.outcomes import Outcomes
from localspec.text import printable

EMBEDDED, PACKAGE, DISTILLED, SELF_MADE = "built-in", "package", "distilled", "self"
"""Sources: the built-in pair, Python packages, `localspec distill`, `-d self`."""
MOST_ENTRIES = 20_000
"""Limit of files and folders examined under one root."""
DEEP, SHALLOW = 6, 2
"""Depth of the search: below caches and folders the user named, and below the current folder."""
OLLAMA_SERVICES = tuple(
    Path(folder) / "models"
    for folder in ("/usr/share/ollama/.ollama", "/var/lib/ollama", "/var/snap/ollama/common")
)
"""Model folders of ollama as a Linux service: its installer's, distributions', and the snap's."""

_MOST_MANIFEST = 1 << 20
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_OLLAMA_MODEL = "application/vnd.ollama.image.model"


@dataclass(frozen=True)
class ModelPlace:
    """A file that may be a model. `path`: the first part of a split file; `reference`: the value
    for -m; `name`: safe for a terminal; `source`: one of the above, or the tool that keeps it."""

    path: Path
    reference: str
    name: str
    source: str


def all_places() -> Iterator[ModelPlace]:
    """All models except those in folders the user named; a file may occur twice."""
    target = paths.embedded(paths.EMBEDDED_TARGET)
    yield ModelPlace(target, "demo", "demo (tale-13m)", EMBEDDED)
    draft = paths.embedded(paths.EMBEDDED_DRAFT)
    yield ModelPlace(draft, str(draft), "demo draft (tale-3m)", EMBEDDED)
    yield from distilled_drafts()
    if (packaged := packages.installed()) is not None:
        yield ModelPlace(packaged, packages.NAME, packages.NAME, PACKAGE)
    yield from folder(paths.cache_folder() / "self", SELF_MADE, depth=0)
    for repository in cache.repositories():
        for number, snapshot in enumerate(cache.snapshots(repository, "main")):
            yield from _snapshot(snapshot, repository, newest=number == 0)
    # llama.cpp's own cache; newer versions use Hugging Face's.
    usual = platformdirs.user_cache_dir("llama.cpp", appauthor=False, opinion=False)
    yield from folder(Path(os.environ.get("LLAMA_CACHE") or usual), "llama.cpp")
    for root in _lmstudio_roots():
        yield from folder(root, "lmstudio")
    yield from _ollama()


def drafts_folder() -> Path:
    """Where `localspec distill` writes drafts, in a folder for each target."""
    return paths.data_folder() / "drafts"


def distilled_drafts() -> Iterator[ModelPlace]:
    yield from folder(drafts_folder(), DISTILLED, depth=SHALLOW)


def _snapshot(snapshot: Path, repository: str, *, newest: bool) -> Iterator[ModelPlace]:
    files = cache.files_in(snapshot)
    models = models_among(files)
    for model in models:
        name, shown = model.name, f"{repository}:{model.name_among(models)}"
        plain = newest and stays_inside(name)  # else the reference names a newer snapshot
        # If the first part is missing, list the model by a part that exists.
        path = snapshot / (name if name in files else model.files[0])
        reference = shown if plain else str(snapshot / name)
        yield ModelPlace(path, reference, printable(shown), "huggingface")
    known = {name for model in models for name in model.files}
    for name in files:
        if name not in known:  # projectors and the like
            path = snapshot / name
            yield ModelPlace(path, str(path), printable(f"{repository}:{name}"), "huggingface")


def _lmstudio_roots() -> list[Path]:
    """LM Studio's folders, laid out as publisher/repository/name."""
    home = paths.home()
    pointer = _read(home / ".lmstudio-home-pointer", 4096).strip()
    homes = [Path(pointer)] if pointer else []
    homes += [home / ".lmstudio", home / ".cache" / "lm-studio"]
    roots = [home / "models" for home in homes]
    for home in homes:
        with suppress(ValueError, KeyError, TypeError, RecursionError):
            settings = json.loads(_read(home / "settings.json", _MOST_MANIFEST))
            roots.append(Path(settings["downloadsFolder"]))
    return roots


def _ollama() -> Iterator[ModelPlace]:
    """Models of ollama: manifests host/user/model/tag name blobs/sha256-…"""
    configured = os.environ.get("OLLAMA_MODELS")
    roots = [Path(configured)] if configured else []
    for root in (*roots, paths.home() / ".ollama" / "models", *OLLAMA_SERVICES):
        for path in _files(root / "manifests", DEEP):
            blob = _blob(path)
            parts = path.relative_to(root / "manifests").parts
            if blob is None or len(parts) < 3:
                continue
            *namespace, model, tag = parts
            namespace = [
                part for part in namespace if part not in ("registry.ollama.ai", "library")
            ]
            name = f"{'/'.join([*namespace, model])}:{tag}"
            file = root / "blobs" / f"sha256-{blob}"
            if os.path.isfile(file):  # False, too, in a closed folder
                yield ModelPlace(file, str(file), printable(name), "ollama")


def _blob(manifest: Path) -> str | None:
    try:
        layers = json.loads(_read(manifest, _MOST_MANIFEST))["layers"]
        digests = [layer["digest"] for layer in layers if layer["mediaType"] == _OLLAMA_MODEL]
        found = _DIGEST.fullmatch(digests[0]) if digests else None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return found[1] if found else None


def folder(root: Path, source: str = "folder", *, depth: int = DEEP) -> Iterator[ModelPlace]:
    """GGUF files in a folder and its subfolders; only the first part of a split model."""
    found = [path for path in _files(root, depth) if path.suffix.lower() == ".gguf"]
    done: set[Path] = set()
    for path in found:
        first = path.with_name(parts_of(path.name)[0])
        if first in done:
            continue
        done.add(first)
        shown = first.relative_to(root) if source == "lmstudio" else Path(first.name)
        existing = first if first in found else path
        yield ModelPlace(existing, str(first), printable(shown.as_posix()), source)


def _files(root: Path, depth: int) -> Iterator[Path]:
    """Files below a folder, sorted within each. Follows links, but no loops, up to MOST_ENTRIES."""
    seen: set[str] = set()
    left = MOST_ENTRIES
    for here, folders, files in os.walk(root, followlinks=True) if os.path.isdir(root) else ():
        real, level = os.path.realpath(here), len(Path(here).parts) - len(root.parts)
        below = sorted(name for name in folders if level < depth and not name.startswith("."))
        folders[:] = below if real not in seen else []
        for name in sorted(files)[:left] if real not in seen else ():
            if os.path.isfile(path := os.path.join(here, name)):
                yield Path(path)
        seen.add(real)
        left -= 1 + len(files)
        if left <= 0:
            return


def _read(path: Path, most: int) -> str:
    with suppress(OSError):
        return read_file(path, most=most).decode("utf-8", "replace")
    return ""


index = Outcomes("facts", 5_000)
"""Cached facts about files, by path, sizes and times. Rename it when the cached fields change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalModel(ModelFacts, ModelPlace):
    """A model file, and what it contains."""


_FACTS = TypeAdapter(ModelFacts)


def local_models(folders: Sequence[Path] = ()) -> list[LocalModel]:
    """All files that look like models, each once, as `all_places` has them. `folders` are searched
    besides the setting `model_folders` and the current folder. Reads only metadata, and caches it
    in an index."""
    known, found = index.all(), dict[str, LocalModel]()
    here, changed = dict[str, dict[str, Any]](), False
    for place in _places(folders):
        with suppress(OSError, RuntimeError, ValueError):  # a link to itself, a file that is gone
            real = str(place.path.resolve())
            if real not in found:
                key = fingerprint({"path": real, "state": _state(place.path)})
                facts = _validated(known.pop(key, None))
                changed |= facts is None
                here[key] = asdict(facts or describe(place.path))
                found[real] = LocalModel(**asdict(place), **here[key])
    if changed:
        index.write(known | here)
    return [*found.values()]


def find_by_name(name: str) -> Path | None:
    """Find a model file by its name in `localspec list`, or by its stem."""
    wanted = {name.casefold(), f"{name}:latest".casefold()}  # ollama lets users omit the tag
    for place in _places(()):
        if not wanted.isdisjoint((place.path.stem.casefold(), place.name.casefold())):
            return place.path
    return None


def _validated(facts: object) -> ModelFacts | None:
    with suppress(ValidationError):  # the index was edited or damaged
        return _FACTS.validate_python(facts)
    return None


def _places(folders: Sequence[Path]) -> Iterator[ModelPlace]:
    from localspec.settings import load_settings

    yield from all_places()
    for named in dict.fromkeys([*folders, *load_settings().model_folders]):
        yield from folder(paths.expanded(named))
    with suppress(OSError):  # the current folder may have been removed
        yield from folder(Path.cwd(), depth=SHALLOW)


def _state(path: Path) -> list[tuple[int, int]]:
    """Size and time of a file and its parts; raises OSError if it is missing."""
    path.stat()
    return [size_and_time(path.with_name(name)) for name in parts_of(path.name)[:MAX_PARTS]]
