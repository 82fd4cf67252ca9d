"""The models on this machine, whoever brought them here."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from localspec import paths
from localspec.errors import LocalspecError
from localspec.files import read_file, write_atomically
from localspec.gguf.description import ModelFacts, describe
from localspec.gguf.names import parts_of
from localspec.gguf.reader import MOST_PARTS
from localspec.hub import places

FORMAT = 1
"""Counts up when what is kept of a file changes."""
MOST_KEPT = 5_000

logger = logging.getLogger("localspec.hub")


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalModel(ModelFacts):
    """A model file. `path`: the first part of a split one; `reference`: what to type after -m;
    `name`: safe for a terminal; `source`: see `localspec.hub.places`."""

    path: Path
    reference: str
    name: str
    source: str


def local_models(folders: Sequence[Path] = ()) -> list[LocalModel]:
    """Everything that looks like a model, in the order of `places`, each file once; `folders`
    besides those of the setting `model_folders` and the current one. Reads metadata only, kept in
    an index in the cache folder."""
    index = _Index(paths.cache_folder() / "models.json")
    found: dict[Path, LocalModel | None] = {}
    for place in _places(folders):
        with suppress(OSError, RuntimeError, ValueError):  # a link to itself, a file that is gone
            real = place.path.resolve()
            if real not in found:
                found[real] = None
                facts = asdict(index.facts(place.path, real))
                found[real] = LocalModel(**asdict(place), **facts)
    index.save()
    return [model for model in found.values() if model is not None]


def _places(folders: Sequence[Path]) -> Iterator[places.ModelPlace]:
    yield from places.everywhere()
    for folder in dict.fromkeys([*folders, *_folders_of_settings()]):
        yield from places.folder(paths.expanded(folder))
    with suppress(OSError):  # it may have been removed
        yield from places.folder(Path.cwd(), depth=places.SHALLOW)


def _folders_of_settings() -> Sequence[Path]:
    from localspec.settings import load_settings

    try:
        return load_settings().model_folders
    except LocalspecError as error:  # whoever asks for a setting will report it
        logger.info("the setting model_folders is not used: %s", error)
        return ()


class _Index:
    """What files contained when last read, by path, times and sizes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._changed = False
        self._kept: dict[str, Any] = {}
        self._facts = TypeAdapter(ModelFacts)
        try:
            stored = json.loads(read_file(path))
            if stored["format"] == FORMAT and isinstance(stored["files"], dict):
                self._kept = stored["files"]
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            logger.info("the index %s is rebuilt: %s", path, error)

    def facts(self, path: Path, real: Path) -> ModelFacts:
        """Of a file, read if need be; raises OSError where it is gone."""
        state = _state(path)
        kept = self._kept.pop(str(real), None)
        facts = None
        if isinstance(kept, dict) and kept.get("state") == state:
            with suppress(ValidationError):  # somebody has changed them
                facts = self._facts.validate_json(json.dumps(kept.get("facts")), strict=True)
        if facts is None:
            facts, self._changed = describe(path), True
        self._kept[str(real)] = {"state": state, "facts": asdict(facts)}
        return facts

    def save(self) -> None:
        """Write it at once, the files of this time last; it can be made again, so it may fail."""
        if not self._changed:
            return
        latest = dict(list(self._kept.items())[-MOST_KEPT:])
        try:
            write_atomically(self._path, json.dumps({"format": FORMAT, "files": latest}))
        except (OSError, ValueError) as error:
            logger.info("the index %s cannot be kept: %s", self._path, error)


def _state(path: Path) -> list[list[int]]:
    """Size and time of a file and its parts that are there; raises OSError where it is gone."""
    path.stat()
    return [_state_of_part(path.with_name(name)) for name in parts_of(path.name)[:MOST_PARTS]]


def _state_of_part(path: Path) -> list[int]:
    with suppress(OSError):
        status = path.stat()
        return [status.st_size, status.st_mtime_ns]
    return []
