"""Tries unknown model files in a child process first, as llama.cpp may abort over them."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from localspec import paths
from localspec.errors import ModelInvalid
from localspec.identity import file_identity
from localspec.llama import child_process, kernels, library
from localspec.llama.outcomes import Outcomes

LEAST_LIMIT, SLOWEST = 120.0, 10e6
"""Seconds for any file, and bytes a second that even a slow disk reads; beyond that it hangs."""
_survived = Outcomes("crash_tests", 1000)


def require_survivable(path: Path, *, cancelled: Callable[[], bool] = lambda: False) -> None:
    """Return if opening the file and decoding with it does not crash; a ModelInvalid if it does, or
    hangs. Cancelled if `cancelled` says so."""
    facts = _facts(path)
    if facts is None or _survived.of(facts) is not None:
        return  # what is no file is told by loading it
    limit = LEAST_LIMIT + path.stat().st_size / SLOWEST
    try:
        status, _ = child_process.run(
            child_process.TRIAL, "file", str(path), limit=limit, cancelled=cancelled
        )
    except TimeoutError:
        raise ModelInvalid(
            f"{path.name} makes llama.cpp hang: in a separate process it did not open within "
            f"{limit:.0f} seconds. The file may be damaged: download it again, or choose another "
            "model."
        ) from None
    if status == 0:
        _survived.keep(facts, {})
    elif status < 0:
        raise ModelInvalid(
            f"{path.name} makes llama.cpp crash ({signal.Signals(-status).name}), tried in a "
            "separate process. The file may be damaged: download it again, or choose another model."
        )


def _facts(path: Path) -> dict[str, Any] | None:
    """File, build and kernels; None for what need not be tried: no file, or an embedded one."""
    ours = {paths.embedded(name) for name in (paths.EMBEDDED_TARGET, paths.EMBEDDED_DRAFT)}
    try:
        if path.resolve() in {p.resolve() for p in ours}:
            return None
        return {
            "file": file_identity(path),
            "library": library.version(),
            "kernels": kernels.status().identity,
        }
    except OSError:
        return None
