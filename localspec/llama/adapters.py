from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localspec.errors import UsageError
from localspec.identity import file_identity
from localspec.paths import expanded
from localspec.typed import convert, convert_fields

_SCALED = re.compile(r"(.+\.gguf):([^/\\]*)", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter (GGUF), added to the weights during passes. `scale`: a finite factor."""

    path: Path
    scale: float = 1.0

    def __post_init__(self) -> None:
        convert_fields(self)
        if not math.isfinite(self.scale):
            raise UsageError(
                f"The scale of the adapter {self.path} is {self.scale}. Give a number, such as 0.5."
            )

    @classmethod
    def parse(cls, text: str) -> Adapter:
        """The adapter named by `FILE` or `FILE:SCALE`; a UsageError if it names none."""
        path, colon, scale = text.rpartition(":")
        number = 1.0
        try:
            number = float(scale) if colon else 1.0
        except ValueError:
            scaled = _SCALED.fullmatch(text)
            if scaled is not None:
                raise UsageError(
                    f"'{scaled[2]}' is not a scale of the adapter {scaled[1]}. Give a number, such "
                    f"as {scaled[1]}:0.5, or leave out the colon."
                ) from None
            colon = ""
        path = path if colon else text
        if not path.strip():
            raise UsageError(
                f"'{text}' names no adapter. Give a file, and a scale after a colon if it is not "
                "1, such as style.gguf:0.5."
            )
        return cls(expanded(path), number)


AdapterSource = str | os.PathLike[str] | Adapter


def parse_adapters(sources: AdapterSource | Iterable[AdapterSource]) -> tuple[Adapter, ...]:
    """One or several adapters; texts are parsed by `Adapter.parse`."""
    several = (sources,) if isinstance(sources, str | os.PathLike | Adapter) else sources
    checked = (convert("lora", source, AdapterSource) for source in several)
    return tuple(
        source if isinstance(source, Adapter) else Adapter.parse(os.fspath(source))
        for source in checked
    )


def identity_with_adapters(path: Path, adapted: Sequence[Adapter]) -> dict[str, Any]:
    """Identity of a model with its adapters and their scales. OSError if a file is missing."""
    known = file_identity(path)
    if adapted:
        known["lora"] = [
            file_identity(adapter.path) | {"scale": adapter.scale} for adapter in adapted
        ]
    return known
