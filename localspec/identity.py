"""This machine, a file, a set of facts: by what a stored figure is known to be still true."""

from __future__ import annotations

import hashlib
import json
import platform
from pathlib import Path
from typing import Any

import psutil


def machine() -> dict[str, Any]:
    """What makes this machine another one, as far as the cost of a pass goes."""
    return {
        "system": platform.system(),
        "processor": _processor(),
        "cores": psutil.cpu_count(logical=False),
        "memory": psutil.virtual_memory().total >> 30,
    }


def file_identity(path: Path) -> dict[str, Any]:
    """A file by name, size and time; hashing gigabytes would take longer than measuring.

    Raises:
        OSError: the file is not there.
    """
    status = path.stat()
    return {"name": path.name, "size": status.st_size, "modified": status.st_mtime_ns}


def fingerprint(facts: dict[str, Any]) -> str:
    """A name for a set of facts (JSON values), hexadecimal; their order does not matter."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
