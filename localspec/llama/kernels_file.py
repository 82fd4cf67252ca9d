"""localspec's own CPU kernels as a file, and what self-tests of it came to on this machine.

For whoever must know without llama.cpp, which takes long to load; `localspec.llama.kernels`
decides.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
from functools import cache
from pathlib import Path
from typing import Any

from localspec import paths
from localspec.files import write_atomically
from localspec.identity import fingerprint

logger = logging.getLogger("localspec.llama")

VARIABLE = "LOCALSPEC_KERNELS"
"""Environment variable: "auto", "off", or the instruction set to take."""
AUTO, OFF = "auto", "off"
INSTRUCTION_SETS = ("avx512", "avxvnni", "avx2", "neon-i8mm", "neon-dotprod")
TYPES = frozenset(
    """
    Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 IQ4_NL IQ4_XS MXFP4 Q2_K Q3_K Q4_K Q5_K Q6_K F16 BF16 F32
    """.split()  # noqa: SIM905
)
"""Types of weights that they take."""
_KEPT = 16
"""Outcomes on disk: another build, CPU or instruction set has one of its own."""


def library_path() -> Path:
    """The library; it need not exist."""
    name = "liblocalspec_kernels.dylib" if sys.platform == "darwin" else "liblocalspec_kernels.so"
    return Path(__file__).resolve().parents[1] / "kernels" / name


def wanted() -> str:
    """What the variable asks for, "auto" where it is not set."""
    return os.environ.get(VARIABLE, "").strip() or AUTO


def digest(path: Path) -> str:
    """A hash of the whole file, hexadecimal.

    Raises:
        OSError: it cannot be read.
    """
    return hashlib.sha256(path.read_bytes()).hexdigest()


def outcome(facts: dict[str, Any]) -> dict[str, Any] | None:
    """What the self-test with these facts came to; None where there was none."""
    found = _all().get(fingerprint(facts))
    return found if isinstance(found, dict) else None


def keep_outcome(facts: dict[str, Any], found: dict[str, Any]) -> None:
    """Keep what a self-test came to, the latest few."""
    known = _all()
    known.pop(key := fingerprint(facts), None)
    known[key] = found
    latest = dict([*known.items()][-_KEPT:])
    try:
        write_atomically(store(), json.dumps(latest, indent=1))
    except OSError as error:
        logger.info("could not keep the outcome of the self-test of the kernels: %s", error)


def store() -> Path:
    """Where outcomes are kept."""
    return paths.cache_folder() / "kernels.json"


@cache
def expected() -> bool:
    """Whether models that are opened here will use the kernels, as far as that can be told without
    llama.cpp: the library is there, and its latest self-test, if any, passed."""
    if wanted() == OFF or not library_path().is_file():
        return False
    latest = [*_all().values()][-1:]
    return all(isinstance(one, dict) and one.get("why_not") is None for one in latest)


def _all() -> dict[str, Any]:
    try:
        found = json.loads(store().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
