"""Does llama.cpp survive this file?

A file that passes every check can still make llama.cpp abort, and the whole process with it. A
program that has something to lose tries an unknown file in a child process first: opens it there
and decodes one token. The answer is kept, by file and build.

The child is `localspec.llama.crash_test_child`.
"""

from __future__ import annotations

import json
import logging
import signal
from collections.abc import Callable
from pathlib import Path

from localspec import paths
from localspec.errors import ModelInvalid
from localspec.files import write_atomically
from localspec.identity import file_identity, fingerprint
from localspec.llama import child_process, kernels, library

logger = logging.getLogger("localspec.llama")

LEAST_LIMIT, SLOWEST = 120.0, 10e6
"""Seconds for any file, and bytes a second that even a slow disk reads; beyond that it hangs."""

_CHILD = "localspec.llama.crash_test_child"


def require_survivable(path: Path, *, cancelled: Callable[[], bool] = lambda: False) -> None:
    """Return if opening the file and decoding with it does not take the process down.

    Raises:
        ModelInvalid: it does, or hangs; the message says which.
        Cancelled: `cancelled` said so.
    """
    key = _key(path)
    if key is None or key in _known():
        return  # what is no file is told by loading it
    limit = LEAST_LIMIT + path.stat().st_size / SLOWEST
    try:
        status = child_process.run(_CHILD, str(path), limit=limit, cancelled=cancelled)
    except TimeoutError:
        raise ModelInvalid(
            f"{path.name} makes llama.cpp hang: in a separate process it did not open within "
            f"{limit:.0f} seconds. The file may be damaged: download it again, or choose another "
            "model."
        ) from None
    if status == 0:
        _remember(key)
    elif status < 0:
        raise ModelInvalid(
            f"{path.name} makes llama.cpp crash ({_signal(-status)}), tried in a separate process. "
            "The file may be damaged: download it again, or choose another model."
        )


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _key(path: Path) -> str | None:
    """Identifies file, build and kernels; None for what need not be tried: no file, or our own."""
    ours = {paths.embedded(name) for name in (paths.EMBEDDED_TARGET, paths.EMBEDDED_DRAFT)}
    try:
        if path.resolve() in {p.resolve() for p in ours}:
            return None
        facts = {
            "file": file_identity(path),
            "library": library.version(),
            "kernels": kernels.status().identity,
        }
        return fingerprint(facts)[:24]
    except OSError:
        return None


def _store() -> Path:
    return paths.cache_folder() / "crash_tests.json"


def _known() -> set[str]:
    try:
        return set(json.loads(_store().read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return set()


def _remember(key: str) -> None:
    store = _store()
    try:
        write_atomically(store, json.dumps(sorted({*_known(), key})))
    except OSError as error:
        logger.info("could not keep the outcome of a crash test: %s", error)
