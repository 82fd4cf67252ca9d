"""Identities of this machine, of files and of JSON values, as keys for cached results."""

import hashlib
import json
import platform
from pathlib import Path
from typing import Any

from localspec import cgroups

_PIECE = 1 << 20


def machine() -> dict[str, Any]:
    """The properties of this machine that determine the cost of a pass."""
    import psutil  # slow to import, and most commands do not need it

    return {
        "system": platform.system(),
        "processor": _processor(),
        "cores": psutil.cpu_count(logical=False),
        "memory": psutil.virtual_memory().total >> 30,
    }


def file_identity(path: Path) -> dict[str, Any]:
    """Identify a file by name, size and time. Raises OSError if it is missing."""
    status = path.stat()
    return {"name": path.name, "size": status.st_size, "modified": status.st_mtime_ns}


def content_identity(path: Path) -> str:
    """Hash a file's size and a MiB at its beginning, middle and end: 16 hexadecimal digits. Raises
    OSError."""
    size = path.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        for start in (0, size // 2, max(0, size - _PIECE)):
            file.seek(start)
            digest.update(file.read(_PIECE))
    return digest.hexdigest()[:16]


def sha256_of(path: Path) -> str:
    """SHA-256 of a whole file, hexadecimal. Raises OSError."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()


def fingerprint(facts: dict[str, Any]) -> str:
    """SHA-256 of JSON values, hexadecimal."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _processor() -> str:
    for line in cgroups.read_text(Path("/proc/cpuinfo")).splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
