"""ggml's AMX code is not used: gcc before 13 drops most of the tile configuration as dead stores,
and the first batched pass of quantized weights then kills the process."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from localspec.llama import ggml


class _Stack(ctypes.Structure):
    _fields_ = (
        ("address", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("size", ctypes.c_size_t),
    )


_SMALL = 4096
"""Bytes: enough for a signal frame, too few for one with AMX's registers."""


def refused(first: Callable[[], object]) -> bool:
    """Make ggml believe that this process may not use AMX; returns whether that worked. ggml asks
    the kernel once, when it lists its buffers, before which `first` is called; the kernel refuses
    while a thread's signal stack is too small for AMX's registers."""
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
