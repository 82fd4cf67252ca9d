"""The answer of `-d auto`, apart, so that the embedded pair loads nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Choice:
    """A draft (None: the n-gram alone), and why, half a sentence or empty. `passing`: it holds only
    as long as memory is short."""

    draft: Path | None
    why: str
    passing: bool = False
