"""Identities of this machine, of files and of sets of facts, for figures that are kept on disk."""

from __future__ import annotations

import hashlib
import json
import platform
from pathlib import Path
from typing import Any

_PIECE = 1 << 20


def machine() -> dict[str, Any]:
    """What of this machine determines the cost of a pass."""
    import psutil  # takes a tenth of the time of a command that asks for nothing of this machine

    return {
        "system": platform.system(),
        "processor": _processor(),
        "cores": psutil.cpu_count(logical=False),
        "memory": psutil.virtual_memory().total >> 30,
    }


def file_identity(path: Path) -> dict[str, Any]:
    """A file by name, size and time, which is quick. Raises OSError if there is none."""
    status = path.stat()
    return {"name": path.name, "size": status.st_size, "modified": status.st_mtime_ns}


def content_identity(path: Path) -> str:
    """16 hexadecimal digits for a file's size and a MiB at its beginning, middle and end. Raises
    OSError."""
    size = path.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        for start in (0, size // 2, max(0, size - _PIECE)):
            file.seek(start)
            digest.update(file.read(_PIECE))
    return digest.hexdigest()[:16]


def fingerprint(facts: dict[str, Any]) -> str:
    """SHA-256 of a set of facts (JSON values), hexadecimal."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
