"""Whether this build's AMX code works; if not, this process does without.

gcc before 13 drops most of the tile configuration as dead stores, and the first batched pass of
quantized weights then kills the process. A child process tries one.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import llama_cpp

from localspec.llama import child_process, ggml
from localspec.llama.library import logger
from localspec.llama.outcomes import Outcomes

LIMIT = 60.0
"""Seconds for the trial, which takes one or two."""
_outcomes = Outcomes("amx", 4)


def works() -> bool:
    """Whether the CPU backend's own weight buffers are safe."""
    if b"AMX_INT8 = 1" not in llama_cpp.llama_print_system_info():
        return True
    facts = {"build": _build()}
    found = _outcomes.of(facts)
    if found is None:
        try:
            survived = child_process.run(child_process.TRIAL, "amx", limit=LIMIT) == 0
        except OSError:  # TimeoutError is one
            survived = False  # doing without the buffers is always right
        if not survived:
            logger.warning(
                "the AMX code of this llama.cpp build crashes or hangs (built by gcc before 13?); "
                "AMX stays off"
            )
        found = {"works": survived}
        _outcomes.keep(facts, found)
    return bool(found.get("works"))


def _build() -> str:
    library = max((Path(llama_cpp.__file__).parent / "lib").glob("*ggml-cpu*"), default=None)
    if library is None:
        return str(llama_cpp.__version__)
    status = library.stat()
    return f"{library} {status.st_mtime_ns} {status.st_size}"


class _Stack(ctypes.Structure):
    _fields_ = (
        ("address", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("size", ctypes.c_size_t),
    )


_SMALL = 4096
"""Bytes: enough for a signal frame, too few for one with AMX's registers."""


def refused(first: Callable[[], object] = lambda: None) -> bool:
    """Make ggml believe that this process may not use AMX; returns whether that worked.

    ggml asks the kernel (arch_prctl) once, when it lists its buffers, before which `first` is
    called. The kernel refuses while a thread's signal stack is too small for AMX's registers.
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
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
