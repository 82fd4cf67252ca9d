"""llama.cpp as a library: what it can do, and where its log goes."""

from __future__ import annotations

import ctypes
import logging
import re
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import PurePath

import llama_cpp
import psutil

from localspec.errors import NativeError, UsageError
from localspec.llama import ggml, openmp
from localspec.text import printable

logger = logging.getLogger("localspec.llama")

openmp.restore()  # llama_cpp is loaded, and OpenMP with it

# ggml_log_level of ggml.h; llama_cpp's own table is of an older version.
_LEVELS = {1: logging.DEBUG, 2: logging.INFO, 3: logging.WARNING, 4: logging.ERROR}
_CONTINUE = 5
_LONGEST = 1000
"""Characters of a complaint."""
_complaints: deque[str] = deque(maxlen=8)
_last_level = logging.DEBUG


def _write_log(level: int, text: bytes, _user_data: object) -> None:
    global _last_level
    line = text.decode("utf-8", "replace").rstrip("\n")
    if level != _CONTINUE:
        _last_level = _LEVELS.get(level, logging.DEBUG)
    if not line.strip(". "):
        return  # progress dots
    if _last_level >= logging.ERROR:
        _complaints.append(line)
    logger.log(_last_level, "%s", line)


# Globals, as native code calls them for as long as the process lives.
_log = llama_cpp.llama_log_callback(_write_log)
_abort: object = None


def take_log_of(set_log: Callable[[object, ctypes.c_void_p], object]) -> None:
    """Send the log lines of a native library to `logging`, by its function that sets a callback."""
    set_log(_log, ctypes.c_void_p(0))


take_log_of(llama_cpp.llama_log_set)  # GPUs introduce themselves as soon as they are asked for


def start() -> None:
    """Initialise the backends, and take their log; harmless when repeated."""
    take_log_of(llama_cpp.llama_log_set)
    llama_cpp.llama_backend_init()


def forget_complaints() -> None:
    """Call before an operation whose failure `complaint` is to explain."""
    _complaints.clear()


def complaint() -> str:
    """The first error that llama.cpp logged since then, on one line: it may quote from a file."""
    if not _complaints:
        return "llama.cpp gave no reason"
    # "function: error loading model: cause" reads better without the function.
    return printable(re.sub(r"^\w+: (error loading model: )?", "", _complaints[0]), _LONGEST)


def on_abort(tell: Callable[[NativeError], object]) -> None:
    """Have `tell` called when llama.cpp is about to abort the process, in the thread that finds the
    trouble first. The process ends when it returns. One for each process: the last one said."""
    on_last_words(lambda words: tell(gave_up(words)))


def gave_up(words: str) -> NativeError:
    """What to say where llama.cpp aborts; `words`: its last."""
    return NativeError(
        f"llama.cpp gave up: {words}. The file of the model may be damaged: download it again, or "
        "choose another model."
    )


def on_last_words(tell: Callable[[str], object]) -> None:
    """The same, told what llama.cpp says and where, and nothing about its cause."""
    global _abort
    first = threading.Lock()

    def abort(words: bytes) -> None:
        # Another thread of this pass may have been first, and ends the process.
        while not first.acquire(timeout=3600.0):
            pass
        where, _, what = words.decode("utf-8", "replace").strip().partition(": ")
        place = f" ({PurePath(where).name})" if what else ""
        tell(f"{what or where}{place}")

    callback = ggml.AbortCallback(abort)
    if ggml.set_abort_callback(callback):
        _abort = callback


def version() -> str:
    return f"{llama_cpp.__version__}; {llama_cpp.llama_print_system_info().decode()}"


def accelerated() -> bool:
    """Whether there is a device beside the CPU that layers can be offloaded to."""
    kinds = (ggml.GPU, ggml.INTEGRATED_GPU)
    return any(ggml.device_type(device) in kinds for device in ggml.devices())


def default_threads() -> int:
    """Physical cores that this process may use: hyperthreads only get in each other's way."""
    physical = psutil.cpu_count(logical=False) or psutil.cpu_count() or 1
    try:
        return max(1, min(physical, len(psutil.Process().cpu_affinity())))
    except AttributeError:  # macOS has no affinity
        return physical


def require_rpc() -> None:
    """Return where this build can use RPC servers; a UsageError where it has no RPC backend."""
    if not llama_cpp.llama_supports_rpc():
        raise UsageError(
            "This build of llama-cpp-python has no RPC backend. Reinstall it with "
            'CMAKE_ARGS="-DGGML_RPC=on", or leave out --rpc.'
        )


def add_rpc_servers(servers: Sequence[str]) -> None:
    """Make the devices of llama.cpp RPC servers (`host:port`) available to models loaded later. A
    NativeError where a server has none.

    Where one does not answer, llama.cpp aborts the process: see `localspec.remote`.
    """
    for server in servers:
        found = ggml.add_rpc_server(server)
        if not found:
            raise NativeError(f"The RPC server {server} has no devices. Leave it out of --rpc.")
        ggml.register(found)
