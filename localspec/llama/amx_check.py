"""Does this build's AMX code survive a batched pass?

llama.cpp moves quantized weights into buffers of its own for CPUs with AMX. gcc before 13 drops
most of the tile configuration as dead stores (`_tile_loadconfig` declares 8 of its 64 bytes as
input), and the first batched pass then kills the process with SIGSEGV. A build cannot tell which
compiler made it, so a child process tries it once, and the answer is kept.

The child is `localspec.llama.amx_child`, which this module only names: the child imports models and
contexts, which import this.
"""

from __future__ import annotations

import json
from pathlib import Path

import llama_cpp

from localspec import paths
from localspec.files import write_atomically
from localspec.llama import child_process
from localspec.llama.library import logger

LIMIT = 60.0
"""Seconds for what takes one where it works; a child that hangs counts as one that crashed."""

_CHILD = "localspec.llama.amx_child"


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
                "the AMX code of this llama.cpp build crashes or hangs (built by gcc before 13?); "
                "its weight buffers stay off"
            )
        known = {"build": build, "works": works}
        try:
            write_atomically(store, json.dumps(known))
        except OSError as error:
            logger.info("could not keep the outcome of the AMX check: %s", error)
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
        return child_process.run(_CHILD, limit=LIMIT) == 0
    except OSError:  # TimeoutError is one
        return False  # doing without the buffers is always right
