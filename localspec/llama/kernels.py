"""Whether this process and its models use localspec's CPU kernels.

The library adds a weight layout (a buffer type, `localspec.kernels`) to ggml. It relies on ggml's
private parts, so it works with one build of llama.cpp, on processors that passed `kernels_test`.
Otherwise stock llama.cpp runs, and `status` names the reason. ggml lists layouts once per process,
so this is decided before the first model.
"""

import ctypes
import json
import os
import platform
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt

from localspec import cgroups
from localspec.identity import machine, sha256_of
from localspec.kernels import library_path
from localspec.llama import child_process, compute_thread, ggml, kernels_file
from localspec.llama.kernels_file import AUTO, OFF, VARIABLE, KernelsUnusable
from localspec.llama.library import logger
from localspec.text import printable

TIMEOUT = 60.0
"""Seconds for a self-test, which usually takes two."""
RETRY_AFTER = 3600.0
"""Seconds until a failed self-test is repeated: the machine may have been paused."""


@dataclass(frozen=True, slots=True)
class KernelStatus:
    """Whether a process or model uses the kernels. `why_not`: a sentence without its period.
    `identity`: kernels and build, for stored measurements; "stock" if not in use."""

    in_use: bool
    instruction_set: str | None = None
    why_not: str | None = None
    identity: str = "stock"

    @property
    def whose(self) -> str:
        return "localspec's" if self.in_use else "llama.cpp's"

    @property
    def words(self) -> str:
        how = f", {self.instruction_set}" if self.in_use else f": {self.why_not}"
        return f"{self.whose}{how}"


_lock = threading.Lock()
_decided: KernelStatus | None = None
_library: Any = None


def status() -> KernelStatus:
    """Whether this process uses the kernels; decided on the first call, before the first model."""
    global _decided
    with _lock:
        if _decided is None:
            amx = sys.platform == "linux" and b"AMX_INT8 = 1" in llama_cpp.llama_print_system_info()
            # ggml requests AMX when the kernels are inserted before its own layouts.
            with disabled_amx() if amx else nullcontext():
                _decided = _start()
            logger.info("kernels: %s", _decided.words)
        return _decided


def weight_buffers_work() -> bool:
    """Whether models may use the CPU's weight layouts, localspec's included: not if AMX is on."""
    status()
    return "AMX" not in ggml.cpu_weight_buffers()


def status_for(option: str) -> KernelStatus:
    """The status for models opened with this `ModelOptions.kernels`."""
    return unused("the option kernels is off") if option == OFF else status()


def unused(why: str) -> KernelStatus:
    return KernelStatus(in_use=False, why_not=why)


def status_of_loaded(option: str, before: int) -> KernelStatus:
    """The status of a model opened with this option since `taken_count` was `before`."""
    found = status_for(option)
    if found.in_use and taken_count() == before:
        return unused("they support none of its weights: other types, or all layers on a device")
    if _library is not None:
        compute_thread.when_idle(_library.localspec_kernels_make_page_huge)
    return found


def taken_count() -> int:
    """Tensors loaded into the kernels' layout since the start."""
    counts = (ctypes.c_int64 * 4)()  # taken, declined, bytes repacked, microseconds of repacking
    if _library is not None:
        _library.localspec_kernels_counts(counts)
    return counts[0]


def left_count() -> int:
    """Operations so far that were left to llama.cpp, whose rounding may depend on the other tokens
    of a pass. While this stays the same, rows are batch-invariant. 0 without the kernels."""
    return 0 if _library is None else int(compute_thread.call(_library.localspec_kernels_left))


def take(*, wanted: bool) -> None:
    """Make models that this thread opens, and contexts that it creates, from now on use the kernels
    or llama.cpp's own code."""
    if _library is not None:
        _library.localspec_kernels_take(wanted)


@contextmanager
def choosing(tiles: npt.NDArray[np.int32], rows: int) -> Iterator[None]:
    """In this thread, multiply only by these tiles of 16 rows of the matrix with `rows` rows."""
    _library.localspec_kernels_choose(tiles.ctypes.data, tiles.size, rows)
    try:
        yield
    finally:
        _library.localspec_kernels_choose(None, 0, 0)


def keep_graphs(context: Any) -> None:
    """Keep graphs of a llama_context's short passes, one per size; on Linux, without devices."""
    decode = ctypes.cast(llama_cpp.llama_cpp._lib.llama_decode, ctypes.c_void_p)
    _library.localspec_kernels_keep_graphs(context, decode)


def drop_graphs(context: Any) -> None:
    """Free these graphs, before the context is freed."""
    if _library is not None:
        _library.localspec_kernels_drop_graphs(context)


@contextmanager
def restoring(positions: npt.NDArray[np.int32] | None) -> Iterator[None]:
    """Pass on the positions of the cells that this thread restores: int32, in the state's order."""
    if positions is None or _library is None:
        yield
        return
    _library.localspec_kernels_restoring(positions.ctypes.data, positions.size)
    try:
        yield
    finally:
        _library.localspec_kernels_restoring(None, 0)


def _start() -> KernelStatus:
    global _library
    try:
        facts = self_test_facts()
        found = kernels_file.self_tests.get(facts)
        failed = None if found is None else found.get("failed")
        if found is None or (isinstance(failed, float) and abs(time.time() - failed) > RETRY_AFTER):
            found = _run_self_test()
            kernels_file.self_tests.store(facts, found)
        if found.get("why_not") is not None:
            return unused(printable(str(found["why_not"]), 400))
        library = kernels_file.load(library_path())
        chosen = kernels_file.start(library, facts)
        _library = library
        identity = f"{chosen} {facts['library'][:16]}"
        return KernelStatus(in_use=True, instruction_set=chosen, identity=identity)
    except (OSError, KernelsUnusable) as error:
        return unused(str(error))


def self_test_facts() -> dict[str, Any]:
    """The facts that a self-test depends on. OSError if a file cannot be read."""
    wanted = kernels_file.requested()
    if wanted == OFF:
        raise KernelsUnusable(f"the variable {VARIABLE} is off")
    if wanted not in (AUTO, *kernels_file.INSTRUCTION_SETS):
        raise KernelsUnusable(
            f"the variable {VARIABLE} is '{printable(wanted, 40)}'; choose {AUTO}, {OFF}, "
            f"{' or '.join(kernels_file.INSTRUCTION_SETS)}"
        )
    if not sys.platform.startswith(("linux", "darwin")):
        raise KernelsUnusable("there are none for this operating system")
    if not library_path().is_file():
        raise KernelsUnusable(
            "they were not built: install a C++ compiler, then reinstall localspec"
        )
    places = ggml.library_of("ggml_backend_cpu_init"), ggml.library_of("ggml_init")
    if None in places:
        raise KernelsUnusable(
            "this build of llama.cpp loads its CPU code late: reinstall llama-cpp-python without "
            "GGML_BACKEND_DL"
        )
    cpu, base = (Path(str(place)).resolve() for place in places)
    return {
        "library": sha256_of(library_path()),
        "cpu": sha256_of(cpu),
        "base": sha256_of(base),
        "cpu_path": str(cpu),
        "base_path": str(base),
        "llama_cpp_python": str(llama_cpp.__version__),
        "machine": [machine()["processor"], platform.machine(), _features()],
        "wanted": wanted,
    }


def _features() -> str:
    lines = cgroups.read_text(Path("/proc/cpuinfo")).splitlines()
    return next((line for line in lines if line.lower().startswith(("flags", "features"))), "")


def _run_self_test() -> dict[str, Any]:
    try:
        code, output = child_process.run("localspec.llama.kernels_test", limit=TIMEOUT)
    except TimeoutError:
        why = "hung"
    else:
        if code == 0:
            return dict(json.loads(output))
        died = f"signal {-code}" if code < 0 else f"exit code {code}"
        why = f"crashed ({died}): the library may be damaged, reinstall localspec"
    again = f"it is repeated in an hour, or at once if you remove {kernels_file.self_tests.path}"
    return {"why_not": f"their self-test {why}; {again}", "failed": time.time()}


class _Stack(ctypes.Structure):
    _fields_ = (
        ("address", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("size", ctypes.c_size_t),
    )


_SMALL = 4096
"""Bytes: enough for a signal frame, too few for one with AMX's registers."""


@contextmanager
def disabled_amx() -> Iterator[None]:
    """Make ggml find, when it lists its buffers, that this process may not use AMX.

    gcc before 13 miscompiles ggml's AMX code, which then kills the process. ggml requests AMX from
    Linux once, when it lists its buffers: here after the block at the latest. Linux refuses while a
    thread's signal stack is too small for AMX's registers.
    """
    libc = ctypes.CDLL(None)
    memory = ctypes.create_string_buffer(_SMALL)
    small, before = _Stack(ctypes.addressof(memory), 0, _SMALL), _Stack()
    libc.sigaltstack(ctypes.byref(small), ctypes.byref(before))
    try:
        with _silence_stderr():
            yield
            ggml.cpu_weight_buffers()
    finally:
        libc.sigaltstack(ctypes.byref(before), None)


@contextmanager
def _silence_stderr() -> Iterator[None]:
    try:
        kept = os.dup(2)
    except OSError:  # closed, as some services do
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
