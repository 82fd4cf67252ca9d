"""Small graphs computed by ggml's CPU backend (ggml.h, ggml-alloc.h, ggml-backend.h). Shapes are
numpy's, innermost dimension last."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import numpy.typing as npt

from localspec.llama import ggml
from localspec.llama.ggml import function

_NAMED = """
    F32=0 F16=1 Q4_0=2 Q4_1=3 Q5_0=6 Q5_1=7 Q8_0=8 Q2_K=10 Q3_K=11 Q4_K=12 Q5_K=13 Q6_K=14 IQ4_NL=20
    IQ4_XS=23 I32=26 BF16=30 MXFP4=39
"""
_TYPES = {name: int(number) for name, number in (one.split("=") for one in _NAMED.split())}

_POINTER, _SIZE, _INT, _LONG = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int64
_TENSORS = 64
_BUFFER = 8
"""Offset of `buffer` in ggml_tensor."""


class _InitParams(ctypes.Structure):
    _fields_ = (("size", _SIZE), ("memory", _POINTER), ("no_alloc", ctypes.c_bool))


_init = function("ggml_init", _POINTER, _InitParams)
_free = function("ggml_free", None, _POINTER)
_overhead = function("ggml_tensor_overhead", _SIZE)
_graph_overhead = function("ggml_graph_overhead", _SIZE)
_row_size = function("ggml_row_size", _SIZE, _INT, _LONG)
_bytes = function("ggml_nbytes", _SIZE, _POINTER)
_new_3d = function("ggml_new_tensor_3d", _POINTER, _POINTER, _INT, *[_LONG] * 3)
_mul_mat = function("ggml_mul_mat", _POINTER, *[_POINTER] * 3)
_mul_mat_id = function("ggml_mul_mat_id", _POINTER, *[_POINTER] * 4)
_reshape_3d = function("ggml_reshape_3d", _POINTER, *[_POINTER] * 2, *[_LONG] * 3)
_permute = function("ggml_permute", _POINTER, *[_POINTER] * 2, *[_INT] * 4)
_attention = function("ggml_flash_attn_ext", _POINTER, *[_POINTER] * 5, *[ctypes.c_float] * 3)
_new_graph = function("ggml_new_graph", _POINTER, _POINTER)
_expand = function("ggml_build_forward_expand", None, *[_POINTER] * 2)
_quantize = function("ggml_quantize_chunk", _SIZE, _INT, _POINTER, _POINTER, *[_LONG] * 3, _POINTER)
_allocate = function("ggml_backend_alloc_ctx_tensors_from_buft", _POINTER, *[_POINTER] * 2)
_empty_buffer = function("ggml_backend_buft_alloc_buffer", _POINTER, _POINTER, _SIZE)
_free_buffer = function("ggml_backend_buffer_free", None, _POINTER)
_set = function("ggml_backend_tensor_set", None, *[_POINTER] * 2, *[_SIZE] * 2)
_get = function("ggml_backend_tensor_get", None, *[_POINTER] * 2, *[_SIZE] * 2)
_supports = function("ggml_backend_dev_supports_op", ctypes.c_bool, *[_POINTER] * 2)
_backend = function("ggml_backend_dev_init", _POINTER, _POINTER, ctypes.c_char_p)
_free_backend = function("ggml_backend_free", None, _POINTER)
_compute = function("ggml_backend_graph_compute", _INT, *[_POINTER] * 2)
plain_buffer = function("ggml_backend_cpu_buffer_type", _POINTER)

Bytes = npt.NDArray[np.uint8]
Values = npt.NDArray[np.float32]


def quantized(name: str, values: npt.NDArray[Any]) -> Bytes:
    """Values [..., columns] in the file layout of the type called `name`."""
    values = np.ascontiguousarray(values, np.float32)
    columns = values.shape[-1]
    rows = values.size // columns
    out = np.empty(rows * _row_size(_TYPES[name], columns), np.uint8)
    _quantize(_TYPES[name], values.ctypes.data, out.ctypes.data, 0, rows, columns, None)
    return out


class Backend:
    def __init__(self, threads: int) -> None:
        self.device = ggml.processor()
        self.handle = _backend(self.device, None)
        address = ggml.registry_address_of(
            ggml.registry_by_name(b"CPU"), b"ggml_backend_set_n_threads"
        )
        ctypes.CFUNCTYPE(None, _POINTER, _INT)(address)(self.handle, threads)

    def __enter__(self) -> Backend:
        return self

    def __exit__(self, *_: object) -> None:
        _free_backend(self.handle)


class Tensors(ExitStack):
    """Tensors in one buffer, and operations on any."""

    def __init__(self) -> None:
        super().__init__()
        size = _TENSORS * _overhead() + _graph_overhead()
        self._context = _init(_InitParams(size, None, True))
        self.callback(_free, self._context)
        self._values: list[tuple[int, npt.NDArray[Any]]] = []

    def new(self, name: str, shape: Sequence[int], values: npt.NDArray[Any]) -> int:
        """A tensor of up to three dimensions; `values`: its bytes, set by `place`."""
        sizes = [*reversed(shape), 1, 1][:3]
        tensor = int(_new_3d(self._context, _TYPES[name], *sizes))
        self._values.append((tensor, np.ascontiguousarray(values)))
        return tensor

    def product(self, weight: int, rows: int) -> int:
        """MUL_MAT: weight [m, k], rows [n, k] -> [n, m]."""
        return int(_mul_mat(self._context, weight, rows))

    def chosen_product(self, weights: int, rows: int, chosen: int) -> int:
        """MUL_MAT_ID: weights [experts, m, k], rows [n, 1, k], chosen int32 [n, used] -> [n, used,
        m]."""
        return int(_mul_mat_id(self._context, weights, rows, chosen))

    def heads(self, rows: int, count: int, heads: int, size: int) -> int:
        """[count, heads × size] -> [heads, count, size], a view."""
        return self.swapped(int(_reshape_3d(self._context, rows, size, heads, count)))

    def swapped(self, tensor: int) -> int:
        """[a, b, c] -> [b, a, c], a view."""
        return int(_permute(self._context, tensor, 0, 2, 1, 3))

    def attention(self, q: int, k: int, v: int, mask: int, scale: float) -> int:
        """FLASH_ATTN_EXT: q [heads, n, d], k and v [kv heads, cells, d], mask float16 [n, cells] ->
        [n, heads, d]."""
        return int(_attention(self._context, q, k, v, mask, scale, 0.0, 0.0))

    def place(self, buffer_type: int) -> None:
        """Allocate the tensors and set those with values."""
        buffer = _allocate(self._context, buffer_type)
        if not buffer:
            raise MemoryError
        self.callback(_free_buffer, buffer)
        for tensor, values in self._values:
            assert values.nbytes == _bytes(tensor)
            _set(tensor, values.ctypes.data, 0, values.nbytes)

    def run(self, backend: Backend, result: int) -> None:
        graph = _new_graph(self._context)
        _expand(graph, result)
        if _compute(backend.handle, graph):
            raise RuntimeError("ggml does not compute the graph")

    def values(self, tensor: int, shape: Sequence[int]) -> Values:
        out = np.empty(shape, np.float32)
        assert out.nbytes == _bytes(tensor)
        _get(tensor, out.ctypes.data, 0, out.nbytes)
        return out


def takes(device: int, buffer_type: int, weight: int, operation: int) -> bool:
    """Whether an operation works on a weight in a buffer of this type, asked as llama.cpp does."""
    place = _POINTER.from_address(weight + _BUFFER)
    buffer = _empty_buffer(buffer_type, 0)
    place.value = buffer
    try:
        return bool(_supports(device, operation))
    finally:
        place.value = None
        _free_buffer(buffer)
