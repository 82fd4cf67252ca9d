"""The kernels' self-test.

For each weight and KV type and every number of rows of a verified draft, results equal ggml's
within the rounding of 8-bit activations, and each row has the same bits in passes of any size.
`python -m localspec.llama.kernels_test` prints the outcome, as the test may crash.
"""

import ctypes
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from localspec.kernels import library_path
from localspec.llama import ggml, kernels
from localspec.llama.ggml import function
from localspec.llama.kernels_file import BUFFER, TYPES, KernelsUnusable, load, start
from localspec.llama.types import TYPE_NUMBERS

_POINTER, _SIZE, _INT, _LONG = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int64
_TENSORS = 64


class _InitParams(ctypes.Structure):
    _fields_ = (("size", _SIZE), ("memory", _POINTER), ("no_alloc", ctypes.c_bool))


_init = function("ggml_init", _POINTER, _InitParams)
_free = function("ggml_free", None, _POINTER)
_overhead = function("ggml_tensor_overhead", _SIZE)
_graph_overhead = function("ggml_graph_overhead", _SIZE)
_row_size = function("ggml_row_size", _SIZE, _INT, _LONG)
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
_free_buffer = function("ggml_backend_buffer_free", None, _POINTER)
_supports = function("ggml_backend_dev_supports_op", ctypes.c_bool, *[_POINTER] * 2)
_backend = function("ggml_backend_dev_init", _POINTER, _POINTER, ctypes.c_char_p)
_free_backend = function("ggml_backend_free", None, _POINTER)
_compute = function("ggml_backend_graph_compute", _INT, *[_POINTER] * 2)
plain_buffer = function("ggml_backend_cpu_buffer_type", _POINTER)

Bytes = npt.NDArray[np.uint8]
Values = npt.NDArray[np.float32]


def quantize_rows(name: str, values: npt.NDArray[Any]) -> Bytes:
    """Values [..., columns] in the file layout of the type `name`."""
    values = np.ascontiguousarray(values, np.float32)
    columns = values.shape[-1]
    rows = values.size // columns
    out = np.empty(rows * _row_size(TYPE_NUMBERS[name], columns), np.uint8)
    _quantize(TYPE_NUMBERS[name], values.ctypes.data, out.ctypes.data, 0, rows, columns, None)
    return out


class Backend(ExitStack):
    def __init__(self, threads: int) -> None:
        super().__init__()
        self.device = ggml.cpu_device()
        self.handle = _backend(self.device, None)
        self.callback(_free_backend, self.handle)
        address = ggml.registry_address_of(
            ggml.registry_by_name(b"CPU"), b"ggml_backend_set_n_threads"
        )
        ctypes.CFUNCTYPE(None, _POINTER, _INT)(address)(self.handle, threads)


class Tensors(ExitStack):
    """Tensors in one buffer, and operations, in a ggml `context`."""

    def __init__(self) -> None:
        super().__init__()
        size = _TENSORS * _overhead() + _graph_overhead()
        self.context = _init(_InitParams(size, None, True))
        self.callback(_free, self.context)
        self._values: list[tuple[int, npt.NDArray[Any]]] = []

    def new(self, name: str, values: npt.NDArray[Any], *shape: int) -> int:
        """A tensor of up to three dimensions, by default those of `values`; `fill` copies them."""
        sizes = [*reversed(shape or values.shape), 1, 1][:3]
        tensor = int(_new_3d(self.context, TYPE_NUMBERS[name], *sizes))
        self._values.append((tensor, np.ascontiguousarray(values)))
        return tensor

    def swap_axes(self, tensor: int) -> int:
        """[a, b, c] -> [b, a, c], a view."""
        return int(_permute(self.context, tensor, 0, 2, 1, 3))

    def allocate(self, buffer_type: int) -> None:
        self.callback(_free_buffer, _allocate(self.context, buffer_type))

    def fill(self) -> None:
        for tensor, values in self._values:
            ggml.set_tensor_values(tensor, values)

    def run(self, backend: Backend, result: int) -> None:
        graph = _new_graph(self.context)
        _expand(graph, result)
        if _compute(backend.handle, graph):
            raise RuntimeError("ggml does not compute the graph")


COUNTS = (*range(1, 17), 65)
"""Rows of a pass; the last stands for prompts."""

_COLUMNS = 512
_HEIGHTS = 64, 40
"""Rows of a weight; 40 is not a multiple of a tile."""
_EXPERTS, _CHOSEN = 4, 2
_KV_HEADS, _GROUP, _CELLS = 2, 3, 256
_SCALE = 0.05
"""Standard deviation of weights; that of keys and values is 1."""
_STEPS = {"F32": 2.0**-17, "F16": 2.0**-10, "BF16": 2.0**-7}
"""Rounding of activations relative to a row's largest; others 1 / 127."""
_SIGMAS, _MEAN_SIGMAS = 12.0, 3.0
"""Maximum and mean difference of two results, in standard deviations of rounding."""
_TINY = 1e-5
_ATTENTION_ERROR = {"F16": 4e-3, "BF16": 4e-3, "Q8_0": 1e-2}


_Build: TypeAlias = Callable[[int, int, Tensors], tuple[int, ...]]
"""From a weight and a number of rows: the result, and last the weight's product within it."""


class SelfTest:
    """Compares the kernels with ggml. `layout`: their ggml_backend_buffer_type_t; `counts`: rows of
    passes, the largest last."""

    def __init__(self, backend: Backend, layout: int, counts: tuple[int, ...] = COUNTS) -> None:
        self._backend, self._layout, self._counts = backend, layout, counts
        self._most = counts[-1]
        self._random = np.random.default_rng(29)

    def first_fault(self) -> str | None:
        """The first fault, as a clause; None if all tests pass."""
        return next(self._faults(), None)

    def _faults(self) -> Iterator[str]:
        for name in TYPES:
            for height in _HEIGHTS:
                yield from self._product(name, height)
            yield from self._product(name, _HEIGHTS[1], _EXPERTS)
        for name in _ATTENTION_ERROR:
            for size in (64, 128):
                yield from self._attention(name, size)

    def _product(self, name: str, height: int, experts: int = 0) -> Iterator[str]:
        """Check a weight, or the experts that each row chooses, times activations."""
        most, rows = self._most, self._activations()
        shape = (experts, height, _COLUMNS) if experts else (height, _COLUMNS)
        weight = name, self._weight(name, height * max(1, experts)), shape
        chosen = np.argsort(self._random.random((most, experts)))[:, :_CHOSEN].astype(np.int32)

        def build(weight: int, count: int, tensors: Tensors) -> tuple[int, ...]:
            if not experts:
                return (_mul_mat(tensors.context, weight, tensors.new("F32", rows[:count])),)
            given = tensors.new("F32", rows[:count, None])
            experts_of = tensors.new("I32", chosen[:count])
            return (_mul_mat_id(tensors.context, weight, given, experts_of),)

        ours = self._passes(self._layout, weight, build)
        if not ours:
            return
        what = f"MUL_MAT{'_ID' if experts else ''} over {name}"
        whole = ours[most][0]
        other = self._passes(plain_buffer(), weight, build, (most,))[most][0]
        steps = np.abs(rows).max(axis=1, keepdims=True) * _STEPS.get(name, 1 / 127)
        noise = steps * np.sqrt(_COLUMNS / 12) * _SCALE
        tiny = _TINY * np.abs(other).max()
        wrong = ~(np.abs(whole - other) <= _SIGMAS * noise + tiny)
        error, explained = (np.sqrt(np.mean(x**2)) for x in (whole - other, noise))
        if wrong.any():
            yield f"{what} with n = {most} is wrong in row {int(np.argwhere(wrong)[0][0])}"
        elif error > _MEAN_SIGMAS * explained + tiny:
            yield f"{what} with n = {most} is less exact than rounding explains"
        for count, (some, *_) in ours.items():
            if not np.array_equal(some, whole[:count]):
                yield f"{what} with n = {count} gives different bits than with n = {most}"

    def _attention(self, name: str, size: int) -> Iterator[str]:
        """Check attention after a product of the kernels; elsewhere ggml computes attention."""
        most, heads = self._most, _KV_HEADS * _GROUP
        rows = self._activations()
        seen = np.tril(np.ones((most, _CELLS), bool), _CELLS - most)
        seen &= self._random.random((most, _CELLS)) < 0.9  # branches of a tree do not see others
        seen[:, 0] = True
        mask = np.where(seen, 0.0, -np.inf).astype(np.float16)
        shape = _CELLS, _KV_HEADS, size
        stored = [
            quantize_rows(name, values)
            for values in self._random.standard_normal((2, *shape), np.float32)
        ]
        exact = [_dequantize(name, values) for values in stored]

        def attention(tensors: Tensors, queries: int, count: int, kind: str, kv: Any) -> int:
            k, v = (tensors.swap_axes(tensors.new(kind, values, *shape)) for values in kv)
            masked = tensors.new("F16", mask[:count])
            q = tensors.swap_axes(_reshape_3d(tensors.context, queries, size, heads, count))
            return int(_attention(tensors.context, q, k, v, masked, size**-0.5, 0.0, 0.0))

        def build(weight: int, count: int, tensors: Tensors) -> tuple[int, ...]:
            queries = _mul_mat(tensors.context, weight, tensors.new("F32", rows[:count]))
            return attention(tensors, queries, count, name, stored), queries

        weight = "Q8_0", self._weight("Q8_0", heads * size), (heads * size, _COLUMNS)
        ours = self._passes(self._layout, weight, build)
        if not ours:
            return

        def ggmls(count: int, kind: str, kv: Any) -> Values:
            queries = ours[count][1]

            def again(tensors: Tensors) -> tuple[int, ...]:
                return (attention(tensors, tensors.new("F32", queries), count, kind, kv),)

            return self._results(count, again)[0]

        whole, what = ours[most][0], f"attention over {name} with heads of {size}"
        error = np.abs(whole - ggmls(most, "F32", exact)).max()
        if not error <= _ATTENTION_ERROR[name]:
            yield f"{what} with n = {most} is wrong by {error:.1g}"
        for count, (some, *_) in ours.items():
            same = np.array_equal(some, whole[:count])
            # Operations that the kernels leave to ggml are not batch-invariant.
            if not same and not np.array_equal(some, ggmls(count, name, stored)):
                yield f"{what} with n = {count} gives different bits than with n = {most}"

    def _activations(self) -> Values:
        rows = self._random.standard_normal((self._most, _COLUMNS), np.float32)
        rows *= np.exp(self._random.standard_normal((self._most, 1), np.float32))
        rows[3 % self._most] = 0.0
        rows[4 % self._most, 17] = 40.0
        return rows

    def _weight(self, name: str, rows: int) -> Bytes:
        return quantize_rows(name, self._random.normal(0.0, _SCALE, (rows, _COLUMNS)))

    def _passes(
        self,
        layout: int,
        weight: tuple[str, Bytes, tuple[int, ...]],
        build: _Build,
        counts: tuple[int, ...] = (),
    ) -> dict[int, list[Values]]:
        """Results of `build` by row count, float32 [rows, elements], with a weight in a layout;
        empty if the layout does not support it."""
        name, raw, shape = weight
        with Tensors() as kept:
            placed = kept.new(name, raw, *shape)
            kept.allocate(layout)
            if layout != plain_buffer():
                with Tensors() as tried:
                    *_, operation = build(placed, 1, tried)
                    if not _supports(self._backend.device, operation):
                        return {}
            kept.fill()
            return {
                count: self._results(count, partial(build, placed, count))
                for count in counts or self._counts
            }

    def _results(self, count: int, build: Callable[[Tensors], tuple[int, ...]]) -> list[Values]:
        with Tensors() as tensors:
            results = build(tensors)
            tensors.allocate(plain_buffer())
            tensors.fill()
            tensors.run(self._backend, results[0])
            return [ggml.tensor_values(tensor).reshape(count, -1) for tensor in results]


def _dequantize(name: str, stored: Bytes) -> Values:
    if name == "F16":
        return stored.view(np.float16).astype(np.float32)
    if name == "BF16":
        return (stored.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    blocks = stored.reshape(-1, 34)  # a scale in F16, and 32 integers
    scales = blocks[:, :2].copy().view(np.float16).astype(np.float32)
    return scales * blocks[:, 2:].copy().view(np.int8)


def run_self_test() -> dict[str, str]:
    """Run the kernels' self-test; returns "instruction_set" if they passed, otherwise "why_not"."""
    try:
        chosen = start(load(library_path()), kernels.self_test_facts())
    except KernelsUnusable as error:
        return {"why_not": str(error)}
    with Backend(threads=2) as backend:
        fault = SelfTest(backend, ggml.cpu_weight_buffers()[BUFFER]).first_fault()
    if fault is not None:
        return {"why_not": f"their self-test failed: {fault}"}
    return {"instruction_set": chosen}


if __name__ == "__main__":
    print(json.dumps(run_self_test()))
