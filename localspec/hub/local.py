"""The models on this machine, whoever brought them here."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from itertools import chain
from pathlib import Path
from typing import Any

from localspec import paths
from localspec.errors import LocalspecError
from localspec.files import read_file, write_atomically
from localspec.gguf.description import ModelFacts, describe
from localspec.gguf.reader import MOST_PARTS, part_number, part_path
from localspec.hub import places

FORMAT = 1
"""Counts up when what is kept of a file changes."""
MOST_KEPT = 5_000

logger = logging.getLogger("localspec.hub")


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model file.

    Attributes:
        path: the first part of a split one.
        reference: what to type after -m.
        name: what to call it, safe for a terminal.
        source: "embedded", "distilled", "package", "huggingface", "llama.cpp", "lmstudio",
            "ollama", "folder", or "self" for what was made here of another one.
        architecture: as in its metadata; empty where it cannot be read.
        parameters: None where it cannot be read.
        quantization: "Q4_K_M" …, empty where it cannot be read.
        trained_context: tokens, None where it is not told.
        size: bytes, all parts.
        problem: why it cannot be opened, a sentence; None if nothing speaks against it.
        chat: whether it has a chat template.
    """

    path: Path
    reference: str
    name: str
    source: str
    architecture: str
    parameters: int | None
    quantization: str
    trained_context: int | None
    size: int
    problem: str | None
    chat: bool


def local_models(folders: Sequence[Path] = ()) -> list[LocalModel]:
    """Everything that looks like a model, in the order of `places`, each file once.

    Reads metadata only, and of files seen before not even that: what they said is kept in the
    cache folder. Looks into packages, the caches of huggingface-hub, llama.cpp, LM Studio and
    ollama, at what `-d self` made, into the folders of the setting `model_folders`, and the current
    folder. Changes nothing there.

    Args:
        folders: further ones to look into.
    """
    index = _Index(paths.cache_folder() / "models.json")
    found: list[LocalModel] = []
    seen: set[Path] = set()
    for place in _places(folders):
        try:
            real = place.path.resolve()
        except (OSError, RuntimeError, ValueError):  # a link to itself
            continue
        if real in seen:
            continue
        seen.add(real)
        facts = index.facts(place.path, real)
        if facts is None:
            continue
        found.append(
            LocalModel(
                place.path,
                place.reference,
                place.name,
                place.source,
                facts.architecture,
                facts.parameters,
                facts.quantization,
                facts.trained_context,
                facts.size,
                facts.problem,
                facts.chat,
            )
        )
    index.save()
    return found


def _places(folders: Sequence[Path]) -> Iterator[places.ModelPlace]:
    yield from chain(
        places.embedded(),
        places.distilled(),
        places.packages(),
        places.made(),
        places.huggingface(),
        places.llama_cpp(),
        places.lmstudio(),
        places.ollama(),
    )
    for folder in dict.fromkeys([*folders, *_folders_of_settings()]):
        yield from places.folder(folder.expanduser())
    with suppress(OSError):  # it may have been removed
        yield from places.folder(Path.cwd(), depth=places.SHALLOW)


def _folders_of_settings() -> Sequence[Path]:
    from localspec.settings import load_settings

    try:
        return load_settings().model_folders
    except LocalspecError as error:  # whoever asks for a setting will be told
        logger.info("the setting model_folders is not used: %s", error)
        return ()


class _Index:
    """What files said when they were read last, by path, times and sizes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._changed = False
        self._kept: dict[str, Any] = {}
        try:
            stored = json.loads(read_file(path))
            if stored["format"] == FORMAT and isinstance(stored["files"], dict):
                self._kept = stored["files"]
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            logger.info("the index %s is rebuilt: %s", path, error)

    def facts(self, path: Path, real: Path) -> ModelFacts | None:
        """Of a file, read if need be; None where it is gone."""
        try:
            state = _state(path)
        except (OSError, ValueError):
            return None
        kept = self._kept.get(str(real))
        if isinstance(kept, dict) and kept.get("state") == state:
            facts = _restored(kept.get("facts"))
            if facts is not None:
                return facts
        facts = describe(path)
        self._kept.pop(str(real), None)
        self._kept[str(real)] = {"state": state, "facts": asdict(facts)}
        self._changed = True
        return facts

    def save(self) -> None:
        """Keep it, in one go; it can all be read again, so failing is not worth a word."""
        if not self._changed:
            return
        latest = dict(list(self._kept.items())[-MOST_KEPT:])
        try:
            write_atomically(self._path, json.dumps({"format": FORMAT, "files": latest}))
        except (OSError, ValueError) as error:
            logger.info("the index %s cannot be kept: %s", self._path, error)


def _state(path: Path) -> list[list[int]]:
    """Size and time of a file and all its other parts; of a missing one, nothing."""
    named = part_number(path)
    parts = [path]
    if named is not None and named[1] <= MOST_PARTS:
        parts += [part_path(path, n) for n in range(1, named[1] + 1) if n != named[0]]
    status = path.stat()  # it, at least, has to be there
    return [[status.st_size, status.st_mtime_ns], *map(_state_of_part, parts[1:])]


def _state_of_part(path: Path) -> list[int]:
    try:
        status = path.stat()
    except OSError:
        return []
    return [status.st_size, status.st_mtime_ns]


_KINDS: dict[str, tuple[type, ...]] = {
    "architecture": (str,),
    "parameters": (int, type(None)),
    "quantization": (str,),
    "trained_context": (int, type(None)),
    "size": (int,),
    "problem": (str, type(None)),
    "chat": (bool,),
}


def _restored(stored: Any) -> ModelFacts | None:
    """Facts as they were kept; None if somebody has changed them."""
    if not isinstance(stored, dict) or stored.keys() != {
        field.name for field in fields(ModelFacts)
    }:
        return None
    if not all(isinstance(stored[name], kinds) for name, kinds in _KINDS.items()):
        return None
    return ModelFacts(**stored)
