"""Capabilities, log and aborts of the llama.cpp library."""

import ctypes
import logging
import re
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import PurePath

import llama_cpp

from localspec.errors import NativeError, UsageError
from localspec.llama import ggml, restore_waits
from localspec.text import printable

logger = logging.getLogger("localspec.llama")

restore_waits()  # llama_cpp is loaded, and OpenMP with it

# ggml_log_level of ggml.h; llama_cpp's own table is from an older version.
_LEVELS = {1: logging.DEBUG, 2: logging.INFO, 3: logging.WARNING, 4: logging.ERROR}
_CONTINUE = 5
_MAX_MESSAGE = 1000
"""Maximum characters of an error message."""
_errors: deque[str] = deque(maxlen=8)
_last_level = logging.DEBUG


def _write_log(level: int, text: bytes, _user_data: object) -> None:
    global _last_level
    line = text.decode("utf-8", "replace").rstrip("\n")
    if level != _CONTINUE:
        _last_level = _LEVELS.get(level, logging.DEBUG)
    if not line.strip(". "):
        return  # progress dots
    if _last_level >= logging.ERROR:
        _errors.append(line)
    logger.log(_last_level, "%s", line)


# Globals, as native code calls them until the process exits.
_log = llama_cpp.llama_log_callback(_write_log)
_abort: object = None


def redirect_log(set_log: Callable[[object, ctypes.c_void_p], object]) -> None:
    """Send a native library's log lines to `logging`, given its function that sets a callback."""
    set_log(_log, ctypes.c_void_p(0))


redirect_log(llama_cpp.llama_log_set)  # GPU drivers write to it when devices are listed


def start() -> None:
    """Initialise the backends. Idempotent."""
    redirect_log(llama_cpp.llama_log_set)
    llama_cpp.llama_backend_init()


def clear_errors() -> None:
    """Forget logged errors, before an operation whose failure `first_error` explains."""
    _errors.clear()


def first_error() -> str:
    """The first error that llama.cpp logged since `clear_errors`, on one line, printable."""
    if not _errors:
        return "llama.cpp gave no reason"
    # "function: error loading model: cause" reads better without the function.
    return printable(re.sub(r"^\w+: (error loading model: )?", "", _errors[0]), _MAX_MESSAGE)


def on_abort(report: Callable[[NativeError], object]) -> None:
    """Call `report` before llama.cpp aborts the process, in the thread that failed first. A process
    has one callback, the latest."""
    global _abort
    first = threading.Lock()

    def abort(message: bytes) -> None:
        # Another thread of this pass may have failed first; it ends the process.
        while not first.acquire(timeout=3600.0):
            pass
        where, _, what = message.decode("utf-8", "replace").strip().partition(": ")
        source = f" ({PurePath(where).name})" if what else ""
        text = (
            f"llama.cpp aborted: {what or where}{source}. The model file may be damaged: "
            "download it again, or choose another model."
        )
        if any("alloc" in line for line in _errors):
            text = (
                f"There is not enough memory ({first_error()}). Use a smaller model, or a shorter "
                "context with --ctx."
            )
        report(NativeError(text))

    callback = ggml.AbortCallback(abort)
    ggml.set_abort_callback(callback)
    _abort = callback  # the previous callback has to outlive this call


def version() -> str:
    return f"{llama_cpp.__version__}; {llama_cpp.llama_print_system_info().decode()}"


def accelerated() -> bool:
    """Whether layers can be offloaded to a device."""
    kinds = (ggml.GPU, ggml.INTEGRATED_GPU)
    return any(ggml.device_type(device) in kinds for device in ggml.devices())


def require_rpc() -> None:
    """A UsageError if this build has no RPC backend."""
    if not llama_cpp.llama_supports_rpc():
        raise UsageError(
            "This build of llama-cpp-python has no RPC backend. Reinstall it with "
            'CMAKE_ARGS="-DGGML_RPC=on", or leave out --rpc.'
        )


def add_rpc_servers(servers: Sequence[str]) -> None:
    """Register the devices of RPC servers (`host:port`) for later models; a NativeError if one has
    none. llama.cpp aborts over one that does not answer, see `localspec.remote`."""
    registry = ggml.registry_by_name(b"RPC")
    for server in servers:
        add = ggml.registry_address_of(registry, b"ggml_backend_rpc_add_server")
        found = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p)(add)(server.encode())
        if not found:
            raise NativeError(f"The RPC server {server} has no devices. Leave it out of --rpc.")
        ggml.register(found)
