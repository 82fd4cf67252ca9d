"""The answer of `-d auto`; by itself, so that the embedded pair need not load what finds others."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Choice:
    """What to draft with.

    Attributes:
        draft: None for the n-gram alone.
        why: half a sentence, without a full stop; empty where nothing need be said.
        passing: whether it holds only as long as memory is short, and is not worth remembering.
    """

    draft: Path | None
    why: str
    passing: bool = False
