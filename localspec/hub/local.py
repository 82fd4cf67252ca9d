"""The models on this machine, from any source."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from localspec import paths
from localspec.files import size_and_time
from localspec.gguf.description import ModelFacts, describe
from localspec.gguf.names import parts_of
from localspec.gguf.reader import MAX_PARTS
from localspec.hub import places
from localspec.identity import fingerprint
from localspec.llama.outcomes import Outcomes

index = Outcomes("facts", 5_000)
"""Cached facts about files, by path, sizes and times. Rename it when the cached fields change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalModel(ModelFacts, places.ModelPlace):
    """A model file, and what it contains."""


_FACTS = TypeAdapter(ModelFacts)


def local_models(folders: Sequence[Path] = ()) -> list[LocalModel]:
    """All files that look like models, each once, in the order of `places`. `folders` are searched
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


def _places(folders: Sequence[Path]) -> Iterator[places.ModelPlace]:
    from localspec.settings import load_settings

    yield from places.all_places()
    for folder in dict.fromkeys([*folders, *load_settings().model_folders]):
        yield from places.folder(paths.expanded(folder))
    with suppress(OSError):  # the current folder may have been removed
        yield from places.folder(Path.cwd(), depth=places.SHALLOW)


def _state(path: Path) -> list[tuple[int, int]]:
    """Size and time of a file and its parts; raises OSError if it is missing."""
    path.stat()
    return [size_and_time(path.with_name(name)) for name in parts_of(path.name)[:MAX_PARTS]]
