"""Where measurements are kept: one small JSON file per machine × pair × settings × library."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from localspec import paths
from localspec.planning.pair_profile import PairProfile

FORMAT = 2
"""Counts up when a stored record means something else; older ones are then measured anew."""

logger = logging.getLogger("localspec.planning.profile_store")


class ProfileStore:
    """Reads and writes what is known of one pair here. Never raises: it can all be measured again.

    Args:
        identity: everything that the figures depend on, as JSON values; see `identity_of`.
    """

    def __init__(self, identity: dict[str, Any]) -> None:
        self._identity = identity = identity | {"format": FORMAT}
        self.path = folder() / f"{fingerprint(identity)[:24]}.json"

    def load(self, profile: PairProfile) -> bool:
        """Fill in what an earlier session measured; False where there is nothing (valid)."""
        try:
            stored = json.loads(self.path.read_text(encoding="utf-8"))
            if stored["identity"] != self._identity:
                return False
            profile.restore(stored["profile"])
        except FileNotFoundError:
            return False
        except (OSError, ValueError, KeyError, TypeError) as error:
            logger.warning(
                "measurements in %s cannot be used, and are made anew: %s", self.path, error
            )
            return False
        return True

    def save(self, profile: PairProfile) -> None:
        """Replace the file in one go: a reader, or a crash, finds the old one or the new one."""
        record = {"identity": self._identity, "profile": profile.as_dict()}
        partial = self.path.with_name(f"{self.path.name}.{os.getpid()}.partial")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            partial.write_text(json.dumps(record), encoding="utf-8")
            partial.replace(self.path)
        except OSError as error:
            with suppress(OSError):
                partial.unlink(missing_ok=True)
            logger.warning("measurements cannot be kept in %s: %s", self.path, error)

    def remove(self) -> None:
        """Forget what is on disk."""
        try:
            self.path.unlink(missing_ok=True)
        except OSError as error:
            logger.warning("measurements in %s cannot be removed: %s", self.path, error)


def fingerprint(identity: dict[str, Any]) -> str:
    """A name for a set of facts, hexadecimal."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


def folder() -> Path:
    """Where all the files are."""
    return paths.cache_folder() / "measurements"


def machine() -> dict[str, Any]:
    """What makes this machine another one, as far as the cost of a pass goes."""
    return {
        "system": platform.system(),
        "processor": _processor(),
        "cores": psutil.cpu_count(logical=False),
        "memory": psutil.virtual_memory().total >> 30,
    }


def file_identity(path: Path) -> dict[str, Any]:
    """A file by name, size and time; hashing gigabytes would take longer than measuring."""
    status = path.stat()
    return {"name": path.name, "size": status.st_size, "modified": status.st_mtime_ns}


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
