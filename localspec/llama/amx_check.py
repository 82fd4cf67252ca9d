"""Does this build's AMX code survive a batched pass?

llama.cpp moves quantized weights into buffers of its own for CPUs with AMX. gcc before 13 drops
most of the tile configuration as dead stores (`_tile_loadconfig` declares 8 of its 64 bytes as
input), and the first batched pass then kills the process with SIGSEGV. A build cannot tell which
compiler made it, so a child process tries it once, and the answer is kept. Where it crashes, this
process does without AMX, and llama.cpp takes the layouts that it has for other CPUs.

The child is `localspec.llama.amx_child`, which this module only names: the child imports models and
contexts, which import this.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import llama_cpp

from localspec import paths
from localspec.files import write_atomically
from localspec.llama import child_process, ggml
from localspec.llama.library import logger

LIMIT = 60.0
"""Seconds for what takes one where it works; a child that hangs counts as one that crashed."""

_CHILD = "localspec.llama.amx_child"


def works() -> bool:
    """Whether the CPU backend's own weight buffers may be used as they come."""
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
                "AMX stays off"
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


class _Stack(ctypes.Structure):
    """stack_t of signal.h on Linux."""

    _fields_ = (
        ("address", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("size", ctypes.c_size_t),
    )


_SMALL = 4096
"""Bytes: enough for a signal's frame as it is, too few for one with AMX's registers."""


def refused(first: Callable[[], object] = lambda: None) -> bool:
    """Have ggml find that this process may not use AMX; whether its other layouts are used then.

    ggml asks the kernel for AMX (arch_prctl, ARCH_REQ_XCOMP_PERM) when it lists its buffers, which
    it does once for the life of the process. The kernel refuses while a thread's stack for signals
    is too small for AMX's registers: so ggml is made to ask while this thread has such a stack.

    Args:
        first: called before ggml lists its buffers, for what is to be among them.
    """
    if not sys.platform.startswith("linux"):
        return False
    libc = ctypes.CDLL(None)
    memory = ctypes.create_string_buffer(_SMALL)
    small, before = _Stack(ctypes.addressof(memory), 0, _SMALL), _Stack()
    if libc.sigaltstack(ctypes.byref(small), ctypes.byref(before)):
        return False
    try:
        with _silent():
            first()
            names = ggml.cpu_weight_buffers()
    finally:
        libc.sigaltstack(ctypes.byref(before), None)
    return bool(names) and "AMX" not in names


@contextmanager
def _silent() -> Iterator[None]:
    """Keep what ggml prints from standard error; it does not go through its log."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
