"""Whether a pair fits into this machine's memory."""

from __future__ import annotations

import psutil

from localspec.hub.gguf import GGUFFile
from localspec.hub.memory import MemoryNeed, default_context, predict


def memory_of_pair(
    target: GGUFFile, draft: GGUFFile | None, context: int | None
) -> tuple[MemoryNeed, MemoryNeed | None]:
    """What both take in main memory, the draft's cache as long as the target's."""
    tokens = default_context(target, context or 0)
    need = predict(target, context=tokens)
    return need, None if draft is None else predict(draft, context=tokens)


def shown(size: int) -> str:
    """Bytes as people read them: 4.7 GiB."""
    for unit, name in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size} bytes"


def available() -> tuple[int, int]:
    """Bytes of main memory that are free or can be freed, and in all."""
    memory = psutil.virtual_memory()
    return int(memory.available), int(memory.total)
