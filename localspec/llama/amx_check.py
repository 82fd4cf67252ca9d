"""Does this build's AMX code survive a batched pass?

llama.cpp moves quantized weights into buffers of its own for CPUs with AMX. gcc before 13 drops
most of the tile configuration as dead stores (`_tile_loadconfig` declares 8 of its 64 bytes as
input), and the first batched pass then kills the process with SIGSEGV. A build cannot tell which
compiler made it, so a child process tries it once, and the answer is kept.

Run as a module this *is* the child: it exits with 0 if the pass survived.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import llama_cpp

from localspec import paths
from localspec.files import write_atomically
from localspec.llama.library import logger


def weight_buffers_work() -> bool:
    """Whether the CPU backend's own weight buffers may be used."""
    if b"AMX_INT8 = 1" not in llama_cpp.llama_print_system_info():
        return True
    store = paths.cache_folder() / "amx.json"
    build = _build()
    try:
        known = json.loads(store.read_text())
    except (OSError, ValueError):
        known = {}
    if known.get("build") != build:
        works = _survives()
        if not works:
            logger.warning(
                "the AMX code of this llama.cpp build crashes (built by gcc before 13?); "
                "its weight buffers stay off"
            )
        known = {"build": build, "works": works}
        try:
            write_atomically(store, json.dumps(known))
        except OSError as error:
            logger.info("could not keep the answer of the AMX probe: %s", error)
    return bool(known["works"])


def _build() -> str:
    """Identifies the native library: path, time and size."""
    library = max((Path(llama_cpp.__file__).parent / "lib").glob("*ggml-cpu*"), default=None)
    if library is None:
        return str(llama_cpp.__version__)
    status = library.stat()
    return f"{library} {status.st_mtime_ns} {status.st_size}"


def _survives() -> bool:
    try:
        child = _child()
    except (OSError, subprocess.TimeoutExpired):
        return False  # doing without the buffers is always right
    return child.returncode == 0


def _child() -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "localspec.llama.amx_check"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        # A Ctrl+C meant for us must not look like a crash of the child.
        start_new_session=True,
        check=False,
    )


def _try_it() -> None:
    from localspec.llama.context import Context
    from localspec.llama.model import Model
    from localspec.llama.options import ModelOptions

    options = ModelOptions(context=64)
    model = Model(paths.embedded(paths.EMBEDDED_DRAFT), options, weight_buffers=True)
    Context(model, options).extend([1, 2, 3, 4, 5, 6, 7, 8])


if __name__ == "__main__":
    _try_it()
