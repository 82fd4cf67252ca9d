"""Does llama.cpp survive this file?

A file that passes every check can still make llama.cpp abort, and the whole process with it. A
program that has something to lose tries an unknown file in a child process first: opens it there
and decodes one token. The answer is kept, by file and build.

Run as a module this *is* the child.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from localspec import paths
from localspec.errors import Cancelled, LocalspecError, ModelInvalid
from localspec.files import write_atomically
from localspec.identity import file_identity, fingerprint

logger = logging.getLogger("localspec.llama")

_POLL = 0.1
"""Seconds between looks whether to stop."""
_REFUSED = 3
"""Exit status of a child whose file was refused in the ordinary way, which loading will tell."""


def require_survivable(path: Path, *, cancelled: Callable[[], bool] = lambda: False) -> None:
    """Return if opening the file and decoding with it does not take the process down.

    Raises:
        ModelInvalid: it does; the message says how.
        Cancelled: `cancelled` said so.
    """
    key = _key(path)
    if key is None or key in _known():
        return  # what is no file is told by loading it
    child = subprocess.Popen(
        [sys.executable, "-m", "localspec.llama.crash_test", str(path)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ
        | {
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            # Else ggml calls a debugger, which takes longer than all the rest.
            "GGML_NO_BACKTRACE": "1",
        },
        # A Ctrl+C meant for us must not look like a crash of the child.
        start_new_session=True,
    )
    try:
        while True:
            with suppress(subprocess.TimeoutExpired):
                status = child.wait(_POLL)
                break
            if cancelled():
                raise Cancelled("Stopped while the file was tried.")
    finally:
        child.kill()
        child.wait()
    if status == 0:
        _remember(key)
    elif status < 0:
        raise ModelInvalid(
            f"{path.name} makes llama.cpp crash ({_signal(-status)}), tried in a process of its "
            "own. The file may be damaged: download it again, or choose another model."
        )


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _key(path: Path) -> str | None:
    """Identifies file and build; None for what need not be tried: no file, or our own."""
    from localspec.llama import library

    ours = {paths.embedded(name) for name in (paths.EMBEDDED_TARGET, paths.EMBEDDED_DRAFT)}
    try:
        if path.resolve() in {p.resolve() for p in ours}:
            return None
        return fingerprint({"file": file_identity(path), "library": library.version()})[:24]
    except OSError:
        return None


def _store() -> Path:
    return paths.cache_folder() / "trials.json"


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
        logger.info("could not keep the outcome of a trial: %s", error)


def _try_it(path: Path) -> None:
    from localspec.llama.context import Context
    from localspec.llama.model import Model
    from localspec.llama.options import ModelOptions

    # On the CPU, whatever devices there are: they may be in use.
    options: Any = ModelOptions(context=64, gpu_layers=0)
    with Model(path, options) as model:
        context = Context(model, options)
        context.extend([0])
        context.close()


if __name__ == "__main__":
    try:
        _try_it(Path(sys.argv[1]))
    except LocalspecError:
        sys.exit(_REFUSED)
