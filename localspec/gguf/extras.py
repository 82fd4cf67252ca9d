from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from localspec.errors import LocalspecError
from localspec.gguf.file import GGUFFile
from localspec.gguf.reader import read_gguf
from localspec.llama.options import ModelOptions


@dataclass(frozen=True, slots=True)
class Extras:
    """Adapters, and a projector where the target's layers are: what is opened besides weights."""

    adapters: tuple[GGUFFile, ...] = ()
    draft_adapters: tuple[GGUFFile, ...] = ()
    projector: GGUFFile | None = None

    @classmethod
    def of(cls, options: ModelOptions) -> Extras:
        """Those that options name; unreadable ones are reported when they are opened."""
        mmproj = () if options.mmproj is None else (options.mmproj,)
        projector = _read(Path(path).expanduser() for path in mmproj)
        return cls(
            _read(one.path for one in options.adapters),
            _read(one.path for one in options.draft_adapters),
            projector[0] if projector else None,
        )

    def of_draft(self) -> Extras:
        return Extras(self.draft_adapters)


NO_EXTRAS = Extras()


def _read(paths: Iterable[Path]) -> tuple[GGUFFile, ...]:
    found = []
    for path in paths:
        with suppress(LocalspecError):
            found.append(read_gguf(path))
    return tuple(found)
