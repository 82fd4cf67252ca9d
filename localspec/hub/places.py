"""Where GGUF files lie on this machine: Python packages, the caches of several tools, folders.

Nothing is changed anywhere, and nothing that is found is believed: trees may be huge or loop,
links may lead nowhere, manifests may name files outside of their folder.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from localspec import paths
from localspec.gguf.names import choose, models_among, parts_of, stays_inside
from localspec.hub.packages import PACKAGED
from localspec.text import printable

EMBEDDED = "embedded"
"""The source of the pair that comes with localspec."""
PACKAGE = "package"
"""The source of models inside Python packages."""
DISTILLED = "distilled"
"""The source of drafts that were trained on this machine."""
SELF_MADE = "self"
"""The source of drafts that were made of models' own files."""
MOST_ENTRIES = 20_000
"""Files and folders looked at under one root."""
DEEP, SHALLOW = 6, 2
"""Levels of folders below a cache or a folder that the user named, and below the current one."""
MOST_MANIFEST = 1 << 20
OLLAMA_SERVICE = Path("/usr/share/ollama/.ollama/models")
"""Where ollama keeps models on Linux when it runs as a service."""

_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_OLLAMA_MODEL = "application/vnd.ollama.image.model"


@dataclass(frozen=True, slots=True)
class ModelPlace:
    """A file that may be a model.

    Attributes:
        path: the first part.
        reference: what to type for it.
        name: what to call it, safe for a terminal.
        source: whose it is.
    """

    path: Path
    reference: str
    name: str
    source: str


def embedded() -> Iterator[ModelPlace]:
    """The pair that comes with localspec."""
    target = paths.embedded(paths.EMBEDDED_TARGET)
    yield ModelPlace(target, "demo", "demo (tale-13m)", EMBEDDED)
    draft = paths.embedded(paths.EMBEDDED_DRAFT)
    yield ModelPlace(draft, str(draft), "demo draft (tale-3m)", EMBEDDED)


def drafts_folder() -> Path:
    """Where `localspec distill` leaves drafts, in a folder for each target."""
    return paths.data_folder() / "drafts"


def distilled() -> Iterator[ModelPlace]:
    """Drafts that were trained here."""
    yield from folder(drafts_folder(), DISTILLED, depth=SHALLOW)


def packages() -> Iterator[ModelPlace]:
    """Models inside installed Python packages."""
    for model in PACKAGED:
        path = model.path
        if path is not None:
            yield ModelPlace(path, model.name, model.name, PACKAGE)


def made() -> Iterator[ModelPlace]:
    """Drafts that were made of models' own files, with `-d self`."""
    yield from folder(paths.cache_folder() / "self", SELF_MADE, depth=0)


def huggingface() -> Iterator[ModelPlace]:
    """Hugging Face's cache: models--user--repo/snapshots/<commit>/name."""
    for folder in _folders_in(_huggingface_cache()):
        kind, _, rest = folder.name.partition("--")
        owner, _, repository = rest.partition("--")
        if kind != "models" or not repository:
            continue
        commit = _read(folder / "refs" / "main", 100).strip()
        snapshots = _folders_in(folder / "snapshots")
        snapshots.sort(key=lambda path: (path.name != commit, -_changed(path)))
        for number, snapshot in enumerate(snapshots):
            yield from _snapshot(snapshot, f"{owner}/{repository}", newest=number == 0)


def _snapshot(folder: Path, repository: str, *, newest: bool) -> Iterator[ModelPlace]:
    files = {path.relative_to(folder).as_posix(): path for path in _ggufs(folder, DEEP)}
    models = models_among(files)
    besides = [name for name in files if not any(name in model.files for model in models)]
    for model in models:
        # Of two files of one quantization, and in older snapshots, the reference means another.
        which = choose(models, quant=model.quant, file=None) if model.quant else None
        name = model.name
        reference = f"{repository}:{model.quant if which is model else name}"
        if not newest or not stays_inside(name):
            reference = str(folder / name)
        shown = f"{repository}:{model.quant or name}" if which is model else f"{repository}:{name}"
        # Whatever is there stands for a model of which the first part is missing.
        path = files.get(name) or files[model.files[0]]
        yield ModelPlace(path, reference, printable(shown), "huggingface")
    for name in besides:
        yield ModelPlace(
            files[name], str(files[name]), printable(f"{repository}:{name}"), "huggingface"
        )


def llama_cpp() -> Iterator[ModelPlace]:
    """llama.cpp's own cache (newer versions share Hugging Face's)."""
    yield from folder(_llama_cpp_cache(), "llama.cpp")


def lmstudio() -> Iterator[ModelPlace]:
    """LM Studio's folders: publisher/repository/name."""
    home = Path.home()
    pointer = _read(home / ".lmstudio-home-pointer", 4096).strip()
    roots = [Path(pointer) / "models"] if pointer else []
    roots += [home / ".lmstudio" / "models", home / ".cache" / "lm-studio" / "models"]
    for root in dict.fromkeys(roots):
        yield from folder(root, "lmstudio")


def ollama() -> Iterator[ModelPlace]:
    """ollama's models: manifests/host/user/model/tag name blobs/sha256-…"""
    named = os.environ.get("OLLAMA_MODELS")
    roots = [Path(named)] if named else []
    roots += [
        Path.home() / ".ollama" / "models",
        OLLAMA_SERVICE,
    ]
    for root in dict.fromkeys(roots):
        for path in _files(root / "manifests", DEEP):
            blob = _blob(path)
            if blob is None:
                continue
            parts = path.relative_to(root / "manifests").parts
            if len(parts) < 3:
                continue
            *space, model, tag = parts
            space = [part for part in space if part not in ("registry.ollama.ai", "library")]
            name = f"{'/'.join([*space, model])}:{tag}"
            file = root / "blobs" / f"sha256-{blob}"
            if file.is_file():
                yield ModelPlace(file, str(file), printable(name), "ollama")


def _blob(manifest: Path) -> str | None:
    """The digest of the model that a manifest names."""
    try:
        layers = json.loads(_read(manifest, MOST_MANIFEST))["layers"]
        digests = [layer["digest"] for layer in layers if layer["mediaType"] == _OLLAMA_MODEL]
        found = _DIGEST.fullmatch(digests[0]) if digests else None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return found[1] if found else None


def folder(root: Path, source: str = "folder", *, depth: int = DEEP) -> Iterator[ModelPlace]:
    """GGUF files in a folder and below; of a split model, its first part stands for all."""
    found = dict.fromkeys(_ggufs(root, depth))
    done: set[Path] = set()
    for path in found:
        first = path.with_name(parts_of(path.name)[0])
        if first in done:
            continue
        done.add(first)
        shown = first.relative_to(root) if source == "lmstudio" else Path(first.name)
        yield ModelPlace(
            first if first in found else path, str(first), printable(shown.as_posix()), source
        )


def _ggufs(root: Path, depth: int) -> Iterator[Path]:
    return (path for path in _files(root, depth) if path.suffix.lower() == ".gguf")


def _files(root: Path, depth: int) -> Iterator[Path]:
    """Files below a folder, sorted within each; links are followed, loops and excess are not."""
    waiting = [(root, 0)]
    seen: set[tuple[int, int]] = set()
    entries = 0
    while waiting:
        folder, level = waiting.pop()
        try:
            status = folder.stat()
            if (status.st_dev, status.st_ino) in seen:
                continue
            seen.add((status.st_dev, status.st_ino))
            with os.scandir(folder) as listing:
                inside = sorted(listing, key=lambda entry: entry.name)
        except (OSError, ValueError):
            continue
        below = []
        for entry in inside:
            entries += 1
            if entries > MOST_ENTRIES:
                return
            try:
                if entry.is_dir():
                    if level < depth and not entry.name.startswith("."):
                        below.append((Path(entry.path), level + 1))
                elif entry.is_file():
                    yield Path(entry.path)
            except OSError:
                continue
        waiting += reversed(below)


def _folders_in(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.is_dir())
    except OSError:
        return []


def _read(path: Path, most: int) -> str:
    """A small text file; empty where there is none."""
    try:
        if not path.is_file():
            return ""
        with path.open("rb") as file:
            return file.read(most).decode("utf-8", "replace")
    except (OSError, ValueError):
        return ""


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _cache_home() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def _huggingface_cache() -> Path:
    """As huggingface_hub finds it, which takes a while to import."""
    for name, inside in (
        ("HF_HUB_CACHE", ""),
        ("HUGGINGFACE_HUB_CACHE", ""),
        ("HF_HOME", "hub"),
    ):
        value = os.environ.get(name)
        if value:
            return Path(os.path.expandvars(value)).expanduser() / inside
    return _cache_home() / "huggingface" / "hub"


def _llama_cpp_cache() -> Path:
    named = os.environ.get("LLAMA_CACHE")
    if named:
        return Path(named)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "llama.cpp"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home()) / "llama.cpp"
    return _cache_home() / "llama.cpp"
