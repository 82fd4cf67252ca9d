"""Where GGUF files lie: Python packages, the caches of several tools, folders.

Nothing is changed, and nothing that is found is trusted: trees may be huge or loop, links may lead
nowhere, manifests may name files outside of their folder.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from localspec import paths
from localspec.files import read_file
from localspec.gguf.names import choose, models_among, parts_of, stays_inside
from localspec.hub import cache, packages
from localspec.text import printable

EMBEDDED, PACKAGE, DISTILLED, SELF_MADE = "built-in", "package", "distilled", "self"
"""Sources: the embedded pair, Python packages, `localspec distill`, `-d self`."""
MOST_ENTRIES = 20_000
"""Files and folders looked at under one root."""
DEEP, SHALLOW = 6, 2
"""Levels below a cache or a folder that the user named, and below the current one."""
OLLAMA_SERVICES = tuple(
    Path(folder) / "models"
    for folder in ("/usr/share/ollama/.ollama", "/var/lib/ollama", "/var/snap/ollama/common")
)
"""ollama's models on Linux when it runs as a service: its own, of distributions, and as a snap."""

_MOST_MANIFEST = 1 << 20
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_OLLAMA_MODEL = "application/vnd.ollama.image.model"


@dataclass(frozen=True, slots=True)
class ModelPlace:
    """A file that may be a model; attributes as in `localspec.hub.local.LocalModel`."""

    path: Path
    reference: str
    name: str
    source: str


def everywhere() -> Iterator[ModelPlace]:
    """All places but folders that the user names; a file may come twice."""
    target = paths.embedded(paths.EMBEDDED_TARGET)
    yield ModelPlace(target, "demo", "demo (tale-13m)", EMBEDDED)
    draft = paths.embedded(paths.EMBEDDED_DRAFT)
    yield ModelPlace(draft, str(draft), "demo draft (tale-3m)", EMBEDDED)
    yield from distilled()
    if (packaged := packages.installed()) is not None:
        yield ModelPlace(packaged, packages.NAME, packages.NAME, PACKAGE)
    yield from folder(paths.cache_folder() / "self", SELF_MADE, depth=0)
    for repository in cache.repositories():
        for number, snapshot in enumerate(cache.snapshots(repository, "main")):
            yield from _snapshot(snapshot, repository, newest=number == 0)
    yield from folder(_llama_cpp_cache(), "llama.cpp")
    for root in _lmstudio_roots():
        yield from folder(root, "lmstudio")
    yield from _ollama()


def drafts_folder() -> Path:
    """Where `localspec distill` writes drafts, in a folder for each target."""
    return paths.data_folder() / "drafts"


def distilled() -> Iterator[ModelPlace]:
    yield from folder(drafts_folder(), DISTILLED, depth=SHALLOW)


def _snapshot(snapshot: Path, repository: str, *, newest: bool) -> Iterator[ModelPlace]:
    files = cache.files_in(snapshot)
    models = models_among(files)
    for model in models:
        # Of two files of one quantization, and in older snapshots, the reference means another.
        which = choose(models, quant=model.quant, file=None) if model.quant else None
        name = model.name
        shown = f"{repository}:{model.quant if which is model else name}"
        plain = newest and stays_inside(name)
        # Whatever is there stands for a model of which the first part is missing.
        path = snapshot / (name if name in files else model.files[0])
        reference = shown if plain else str(snapshot / name)
        yield ModelPlace(path, reference, printable(shown), "huggingface")
    known = {name for model in models for name in model.files}
    for name in files:
        if name not in known:  # projectors and the like
            path = snapshot / name
            yield ModelPlace(path, str(path), printable(f"{repository}:{name}"), "huggingface")


def _lmstudio_roots() -> list[Path]:
    """Folders with publisher/repository/name."""
    home = Path.home()
    pointer = _read(home / ".lmstudio-home-pointer", 4096).strip()
    homes = [Path(pointer)] if pointer else []
    homes += [home / ".lmstudio", home / ".cache" / "lm-studio"]
    roots = [each / "models" for each in homes]
    for each in homes:
        with suppress(ValueError, KeyError, TypeError, RecursionError):
            settings = json.loads(_read(each / "settings.json", _MOST_MANIFEST))
            roots.append(Path(settings["downloadsFolder"]))
    return roots


def _ollama() -> Iterator[ModelPlace]:
    """Manifests host/user/model/tag name blobs/sha256-…"""
    named = os.environ.get("OLLAMA_MODELS")
    roots = [Path(named)] if named else []
    for root in (*roots, Path.home() / ".ollama" / "models", *OLLAMA_SERVICES):
        for path in _files(root / "manifests", DEEP):
            blob = _blob(path)
            parts = path.relative_to(root / "manifests").parts
            if blob is None or len(parts) < 3:
                continue
            *space, model, tag = parts
            space = [part for part in space if part not in ("registry.ollama.ai", "library")]
            name = f"{'/'.join([*space, model])}:{tag}"
            file = root / "blobs" / f"sha256-{blob}"
            if file.is_file():
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
    """GGUF files in a folder and below; of a split model, its first part."""
    found = [path for path in _files(root, depth) if path.suffix.lower() == ".gguf"]
    done: set[Path] = set()
    for path in found:
        first = path.with_name(parts_of(path.name)[0])
        if first in done:
            continue
        done.add(first)
        shown = first.relative_to(root) if source == "lmstudio" else Path(first.name)
        there = first if first in found else path
        yield ModelPlace(there, str(first), printable(shown.as_posix()), source)


def _files(root: Path, depth: int) -> Iterator[Path]:
    """Files below a folder, sorted within each; links are followed, loops and excess are not."""
    seen: set[str] = set()
    entries = 0
    for here, folders, files in os.walk(root, followlinks=True) if os.path.isdir(root) else ():
        if entries + len(seen) > MOST_ENTRIES:
            return
        real, level = os.path.realpath(here), len(Path(here).parts) - len(root.parts)
        below = sorted(name for name in folders if level < depth and not name.startswith("."))
        folders[:] = below if real not in seen else []
        for name in sorted(files) if real not in seen else ():
            entries += 1
            if entries > MOST_ENTRIES:
                return
            if os.path.isfile(path := os.path.join(here, name)):
                yield Path(path)
        seen.add(real)


def _read(path: Path, most: int) -> str:
    with suppress(OSError):
        return read_file(path, most=most).decode("utf-8", "replace")
    return ""


def _llama_cpp_cache() -> Path:
    """llama.cpp's own cache; newer versions share Hugging Face's."""
    usual = platformdirs.user_cache_dir("llama.cpp", appauthor=False, opinion=False)
    return Path(os.environ.get("LLAMA_CACHE") or usual)
