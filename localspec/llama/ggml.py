"""The functions of ggml, llama.cpp's tensor library, that llama-cpp-python does not declare.

Declared here once for all that call them; an object of ggml is an address, `int` or None.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from llama_cpp._ggml import libggml

CPU, GPU, INTEGRATED_GPU = 0, 1, 2
"""ggml_backend_dev_type of ggml-backend.h; the latter two take layers."""

AbortCallback: Any = ctypes.CFUNCTYPE(None, ctypes.c_char_p)
"""ggml_abort_callback_t of ggml.h: told what went wrong."""

_Pointer = ctypes.c_void_p


def function(name: str, result: Any, *arguments: Any) -> Any:
    """One of ggml, declared."""
    found = getattr(libggml, name)
    found.restype, found.argtypes = result, list(arguments)
    return found


registry_count: Callable[[], int] = function("ggml_backend_reg_count", ctypes.c_size_t)
registry_at: Callable[[int], int] = function("ggml_backend_reg_get", _Pointer, ctypes.c_size_t)
registry_name: Callable[[int], bytes | None] = function(
    "ggml_backend_reg_name", ctypes.c_char_p, _Pointer
)
registry_by_name: Callable[[bytes], int | None] = function(
    "ggml_backend_reg_by_name", _Pointer, ctypes.c_char_p
)
registry_address_of: Callable[[int | None, bytes], int | None] = function(
    "ggml_backend_reg_get_proc_address", _Pointer, _Pointer, ctypes.c_char_p
)
register: Callable[[int], None] = function("ggml_backend_register", None, _Pointer)

device_count: Callable[[], int] = function("ggml_backend_dev_count", ctypes.c_size_t)
device_at: Callable[[int], int] = function("ggml_backend_dev_get", _Pointer, ctypes.c_size_t)
device_name: Callable[[int], bytes | None] = function(
    "ggml_backend_dev_name", ctypes.c_char_p, _Pointer
)
device_description: Callable[[int], bytes | None] = function(
    "ggml_backend_dev_description", ctypes.c_char_p, _Pointer
)
device_type: Callable[[int], int] = function("ggml_backend_dev_type", ctypes.c_int, _Pointer)
device_registry: Callable[[int], int] = function("ggml_backend_dev_backend_reg", _Pointer, _Pointer)
_buffer_name: Callable[[int], bytes | None] = function(
    "ggml_backend_buft_name", ctypes.c_char_p, _Pointer
)
_device_memory: Callable[[int, Any, Any], None] = function(
    "ggml_backend_dev_memory",
    None,
    _Pointer,
    ctypes.POINTER(ctypes.c_size_t),
    ctypes.POINTER(ctypes.c_size_t),
)


_tensor_name: Callable[[int], bytes | None] = function("ggml_get_name", ctypes.c_char_p, _Pointer)
_tensor_size: Callable[[int], int] = function("ggml_nbytes", ctypes.c_size_t, _Pointer)
_tensor_get: Callable[[int, int, int, int], None] = function(
    "ggml_backend_tensor_get", None, _Pointer, _Pointer, ctypes.c_size_t, ctypes.c_size_t
)
_tensor_set: Callable[[int, int, int, int], None] = function(
    "ggml_backend_tensor_set", None, _Pointer, _Pointer, ctypes.c_size_t, ctypes.c_size_t
)


def tensor_name(tensor: int) -> str:
    """What a graph calls a tensor."""
    return text(_tensor_name(tensor))


def tensor_values(tensor: int) -> npt.NDArray[np.float32]:
    """The values of a tensor in f32, wherever it is: float32 [elements], a copy."""
    values = np.empty(_tensor_size(tensor) // 4, np.float32)
    _tensor_get(tensor, values.ctypes.data, 0, values.nbytes)
    return values


def set_tensor_values(tensor: int, values: npt.NDArray[np.float32]) -> None:
    """Overwrite the values of a tensor in f32, of which there are as many."""
    _tensor_set(tensor, values.ctypes.data, 0, values.nbytes)


def devices() -> list[int]:
    """Every device of this build, the CPU among them."""
    return [device_at(i) for i in range(device_count())]


def device_memory(device: int) -> tuple[int, int]:
    """Bytes of its memory: free, total; 0 where it does not tell."""
    free, total = ctypes.c_size_t(0), ctypes.c_size_t(0)
    _device_memory(device, ctypes.byref(free), ctypes.byref(total))
    return int(free.value), int(total.value)


def cpu_weight_buffers() -> dict[str, int]:
    """The layouts that the CPU backend rewrites weights to (ggml_backend_buffer_type_t), by their
    names, the preferred one first."""
    listed: Any = registry_address_of(registry_by_name(b"CPU"), b"ggml_backend_dev_get_extra_bufts")
    cpu = processor()
    if listed is None or cpu is None:
        return {}
    found = ctypes.CFUNCTYPE(ctypes.POINTER(_Pointer), _Pointer)(listed)(cpu)
    named: dict[str, int] = {}
    for buffer in found:
        if buffer is None:
            break
        named[text(_buffer_name(buffer))] = buffer
    return named


def processor() -> int | None:
    """The CPU as a device."""
    return next((device for device in devices() if device_type(device) == CPU), None)


class _Place(ctypes.Structure):
    """Dl_info of dlfcn.h."""

    _fields_ = (
        ("library", ctypes.c_char_p),
        ("base", _Pointer),
        ("symbol", ctypes.c_char_p),
        ("address", _Pointer),
    )


def library_of(function: str) -> str | None:
    """The file that a function of ggml was loaded from; None where this process has none of that
    name. Not on Windows."""
    try:
        address = ctypes.cast(getattr(libggml, function), _Pointer)
        place = _Place()
        found = ctypes.CDLL(None).dladdr(address, ctypes.byref(place))
    except AttributeError:
        return None
    return str(place.library.decode()) if found and place.library else None


def text(raw: bytes | None) -> str:
    """A name as ggml gives it."""
    return (raw or b"").decode("utf-8", "replace")


def set_abort_callback(callback: Any) -> bool:
    """Have an `AbortCallback` called before ggml aborts; False where it has no such hook."""
    try:
        hook = function("ggml_set_abort_callback", _Pointer, AbortCallback)
    except AttributeError:
        return False
    hook(callback)
    return True


def add_rpc_server(address: str) -> int | None:
    """The devices of an RPC server, to be registered; None where it does not answer."""
    add: Any = registry_address_of(registry_by_name(b"RPC"), b"ggml_backend_rpc_add_server")
    devices: int | None = ctypes.CFUNCTYPE(_Pointer, ctypes.c_char_p)(add)(address.encode())
    return devices
