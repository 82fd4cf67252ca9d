"""ggml functions that llama-cpp-python does not declare. Objects are passed as addresses."""

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from llama_cpp._ggml import libggml

CPU, GPU, INTEGRATED_GPU = 0, 1, 2
"""ggml_backend_dev_type of ggml-backend.h; layers can be offloaded to the latter two."""

AbortCallback: Any = ctypes.CFUNCTYPE(None, ctypes.c_char_p)
"""ggml_abort_callback_t of ggml.h."""

_Pointer, _Size, _Text = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p


def function(name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
    found: Callable[..., Any] = getattr(libggml, name)
    found.restype, found.argtypes = result, list(arguments)  # type: ignore[attr-defined]
    return found


registry_count = function("ggml_backend_reg_count", _Size)
registry_at = function("ggml_backend_reg_get", _Pointer, _Size)
registry_name = function("ggml_backend_reg_name", _Text, _Pointer)
registry_by_name = function("ggml_backend_reg_by_name", _Pointer, _Text)
registry_address_of = function("ggml_backend_reg_get_proc_address", _Pointer, _Pointer, _Text)
register = function("ggml_backend_register", None, _Pointer)
device_name = function("ggml_backend_dev_name", _Text, _Pointer)
device_description = function("ggml_backend_dev_description", _Text, _Pointer)
device_type = function("ggml_backend_dev_type", ctypes.c_int, _Pointer)
device_registry = function("ggml_backend_dev_backend_reg", _Pointer, _Pointer)
set_abort_callback = function("ggml_set_abort_callback", _Pointer, AbortCallback)
_device_count = function("ggml_backend_dev_count", _Size)
_device_at = function("ggml_backend_dev_get", _Pointer, _Size)
_buffer_name = function("ggml_backend_buft_name", _Text, _Pointer)
_device_memory = function("ggml_backend_dev_memory", None, _Pointer, *[ctypes.POINTER(_Size)] * 2)
tensor_name = function("ggml_get_name", _Text, _Pointer)
_tensor_size = function("ggml_nbytes", _Size, _Pointer)
_tensor_get = function("ggml_backend_tensor_get", None, _Pointer, _Pointer, _Size, _Size)
_tensor_set = function("ggml_backend_tensor_set", None, _Pointer, _Pointer, _Size, _Size)


def tensor_values(tensor: int) -> npt.NDArray[np.float32]:
    """A copy of the values of an f32 tensor on any device: float32 [elements]."""
    values = np.empty(_tensor_size(tensor) // 4, np.float32)
    _tensor_get(tensor, values.ctypes.data, 0, values.nbytes)
    return values


def set_tensor_values(tensor: int, values: npt.NDArray[Any]) -> None:
    _tensor_set(tensor, values.ctypes.data, 0, values.nbytes)


def devices() -> list[int]:
    return [_device_at(i) for i in range(_device_count())]


def cpu_device() -> int:
    return next(device for device in devices() if device_type(device) == CPU)


def device_memory(device: int) -> tuple[int, int]:
    free, total = _Size(0), _Size(0)
    _device_memory(device, ctypes.byref(free), ctypes.byref(total))
    return int(free.value), int(total.value)


def cpu_weight_buffers() -> dict[str, int]:
    """The CPU backend's weight layouts (ggml_backend_buffer_type_t) by name, in order of
    preference."""
    listed: Any = registry_address_of(registry_by_name(b"CPU"), b"ggml_backend_dev_get_extra_bufts")
    named: dict[str, int] = {}
    for buffer in ctypes.CFUNCTYPE(ctypes.POINTER(_Pointer), _Pointer)(listed)(cpu_device()):
        if buffer is None:
            break
        named[text(_buffer_name(buffer))] = buffer
    return named


class _SymbolInfo(ctypes.Structure):
    _fields_ = (("library", _Text), ("base", _Pointer), ("symbol", _Text), ("address", _Pointer))


def library_of(function: str) -> str | None:
    """The file that a function of ggml was loaded from; None if unknown. Not on Windows."""
    try:
        address = ctypes.cast(getattr(libggml, function), _Pointer)
        info = _SymbolInfo()
        found = ctypes.CDLL(None).dladdr(address, ctypes.byref(info))
    except AttributeError:
        return None
    return str(info.library.decode()) if found and info.library else None


def text(raw: bytes | None) -> str:
    return (raw or b"").decode("utf-8", "replace")
