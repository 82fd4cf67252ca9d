"""What pulls leave behind."""

from __future__ import annotations

import random
from pathlib import Path

SIZE = 300_000


def content(seed: int, size: int = SIZE) -> bytes:
    return random.Random(seed).randbytes(size)


def finished_files(cache: Path) -> list[Path]:
    """Everything in the cache that another tool would take for a whole file."""
    files = [
        p for p in cache.rglob("*") if p.is_file() and p.suffix not in (".lock", ".incomplete")
    ]
    return [p for p in files if p.parent.name != "refs" and p.name != "CACHEDIR.TAG"]


def unfinished(cache: Path) -> list[Path]:
    return list(cache.glob("*/blobs/*.incomplete"))
