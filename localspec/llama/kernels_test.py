"""Do localspec's kernels compute what they should, here?

Each type of weights and of KV cache, for every count of rows that a pass of drafts may have: the
values beside those of the dequantized weights, within what rounding activations to 8 bits explains,
and each row the same bits whatever shares its pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from localspec.llama.ggml_graphs import (
    Backend,
    Bytes,
    Tensors,
    Values,
    plain_buffer,
    quantized,
    takes,
)

WEIGHTS = (
    *("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "IQ4_XS", "MXFP4"),
    *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "F16", "BF16", "F32"),
)
CACHES = ("F16", "BF16", "Q8_0")
COUNTS = (*range(1, 17), 65)
"""Rows of a pass; the last stands for prompts."""

_COLUMNS = 512
_HEIGHTS = 64, 40
"""Rows of a weight; 40 are no multiple of a tile."""
_EXPERTS, _CHOSEN = 4, 2
_KV_HEADS, _GROUP, _CELLS = 2, 3, 256
_BLOCK = 256
"""Columns that share a scale of activations at most (ggml's Q8_K)."""
_SIGMAS, _MEAN_SIGMAS = 8.0, 2.0
"""Largest and mean error, in those that rounding explains."""
_TINY = 1e-5
_ATTENTION_ERROR = {"F16": 4e-3, "BF16": 4e-3, "Q8_0": 1e-2}
"""Values are drawn with a standard deviation of 1."""


_Results = list[tuple[int, tuple[int, ...]]]
"""Tensors and their shapes: the result, and what else is asked for of its pass, the product of the
weight last."""
_Build = Callable[[Tensors, int, int], _Results]
"""Makes a pass of a weight and so many rows."""


class SelfTest:
    """A run of it.

    Args:
        backend: whose graphs are computed.
        layout: the kernels' ggml_backend_buffer_type_t.
        counts: rows of the passes, the largest last.
    """

    def __init__(self, backend: Backend, layout: int, counts: tuple[int, ...] = COUNTS) -> None:
        self._backend, self._layout, self._counts = backend, layout, counts
        self._random = np.random.default_rng(29)
        self.taken = 0
        """Operations that the kernels took."""

    def first_fault(self) -> str | None:
        """What is wrong, half a sentence; None if nothing is."""
        return next(self._faults(), None) or (
            None if self.taken else "they take no type of weights"
        )

    def _faults(self) -> Iterator[str]:
        for name in WEIGHTS:
            for height in _HEIGHTS:
                yield from self._product(name, height)
            yield from self._chosen_product(name)
        for name in CACHES:
            for size in (64, 128):
                yield from self._attention(name, size)

    def _activations(self, count: int) -> Values:
        """Rows of several sizes, one of zeros, one with a value far out."""
        rows = self._random.standard_normal((count, _COLUMNS), np.float32)
        rows *= np.exp(self._random.standard_normal((count, 1), np.float32))
        rows[3 % count] = 0.0
        rows[4 % count, 17] = 40.0
        return rows

    def _weight(self, name: str, rows: int) -> tuple[Bytes, Values]:
        """A weight in the layout of files, and its values."""
        drawn = self._random.standard_normal((rows, _COLUMNS), np.float32) / np.float32(20.0)
        raw = quantized(name, drawn)
        return raw, self._dequantized(name, raw, rows, _COLUMNS)

    @contextmanager
    def _placed(
        self, name: str, raw: Bytes, shape: tuple[int, ...], layout: int, build: _Build
    ) -> Iterator[Callable[[int], list[Values]] | None]:
        """Passes over so many rows, with a weight in a layout; None where that does not take it."""
        with Tensors() as kept:
            weight = kept.new(name, shape, raw)
            if layout != plain_buffer():
                with Tensors() as tried:
                    operation, _ = build(tried, weight, 1)[-1]
                    if not takes(self._backend.device, layout, weight, operation):
                        yield None
                        return
            kept.place(layout)
            yield lambda count: self._computed(lambda tensors: build(tensors, weight, count))

    def _computed(self, build: Callable[[Tensors], _Results]) -> list[Values]:
        with Tensors() as tensors:
            results = build(tensors)
            tensors.place(plain_buffer())
            tensors.run(self._backend, results[0][0])
            return [tensors.values(tensor, shape) for tensor, shape in results]

    def _product(self, name: str, height: int) -> Iterator[str]:
        raw, values = self._weight(name, height)
        rows = self._activations(self._counts[-1])

        def build(tensors: Tensors, weight: int, count: int) -> _Results:
            given = tensors.new("F32", (count, _COLUMNS), rows[:count])
            return [(tensors.product(weight, given), (count, height))]

        def expected() -> tuple[Values, Values]:
            return _products(rows, values), np.sqrt(_products(_rounding(name, rows), values**2))

        with (
            self._placed(name, raw, (height, _COLUMNS), self._layout, build) as ours,
            self._placed(name, raw, (height, _COLUMNS), plain_buffer(), build) as theirs,
        ):
            yield from self._compare(f"MUL_MAT over {name}", ours, theirs, expected)

    def _chosen_product(self, name: str) -> Iterator[str]:
        height, most = _HEIGHTS[1], self._counts[-1]
        shape = _EXPERTS, height, _COLUMNS
        raw, values = self._weight(name, _EXPERTS * height)
        rows = self._activations(most)
        chosen = np.argsort(self._random.random((most, _EXPERTS)))[:, :_CHOSEN].astype(np.int32)

        def build(tensors: Tensors, weight: int, count: int) -> _Results:
            given = tensors.new("F32", (count, 1, _COLUMNS), rows[:count])
            numbers = tensors.new("I32", (count, _CHOSEN), chosen[:count])
            result = tensors.chosen_product(weight, given, numbers)
            return [(result, (count, _CHOSEN, height))]

        def expected() -> tuple[Values, Values]:
            each = (
                _products(rows, values),
                np.sqrt(_products(_rounding(name, rows), values**2)),
            )
            exact, noise = (
                np.take_along_axis(one.reshape(most, _EXPERTS, height), chosen[:, :, None], axis=1)
                for one in each
            )
            return exact, noise

        with (
            self._placed(name, raw, shape, self._layout, build) as ours,
            self._placed(name, raw, shape, plain_buffer(), build) as theirs,
        ):
            yield from self._compare(f"MUL_MAT_ID over {name}", ours, theirs, expected)

    def _compare(
        self,
        what: str,
        ours: Callable[[int], list[Values]] | None,
        theirs: Callable[[int], list[Values]] | None,
        expected: Callable[[], tuple[Values, Values]],
    ) -> Iterator[str]:
        """Faults of an operation.

        Args:
            ours, theirs: its passes; None where the kernels leave it to ggml.
            expected: the exact result, and the standard deviation that rounding gives it.
        """
        if ours is None or theirs is None:
            return
        self.taken += 1
        most = self._counts[-1]
        (whole,) = ours(most)
        exact, noise = expected()
        size = np.abs(exact).max()
        for other, wide in ((exact, 1.0), (theirs(most)[0], 2.0)):
            wrong = ~(np.abs(whole - other) <= wide * (_SIGMAS * noise + _TINY * size))
            if wrong.any():
                yield f"{what} with n = {most} is wrong in row {int(np.argwhere(wrong)[0][0])}"
                return
        error, explained = (np.sqrt(np.mean(one**2)) for one in (whole - exact, noise))
        if error > _MEAN_SIGMAS * explained + _TINY * size:
            yield f"{what} with n = {most} is less exact than rounding explains"
        for count in self._counts[:-1]:
            if not np.array_equal(ours(count)[0], whole[:count]):
                yield f"{what} with n = {count} gives other bits than with n = {most}"

    def _attention(self, name: str, size: int) -> Iterator[str]:
        """Attention behind a product of a weight that is theirs: elsewhere it stays ggml's."""
        most, heads = self._counts[-1], _KV_HEADS * _GROUP
        raw, _ = self._weight("Q8_0", heads * size)
        rows = self._activations(most)
        seen = np.tril(np.ones((most, _CELLS), bool), _CELLS - most)
        seen &= self._random.random((most, _CELLS)) < 0.9  # branches of a tree do not see others
        seen[:, 0] = True
        mask = np.where(seen, 0.0, -np.inf).astype(np.float16)
        drawn = self._random.standard_normal((2, _CELLS, _KV_HEADS, size), np.float32)
        stored = [quantized(name, one) for one in drawn]
        scale = size**-0.5

        def behind(tensors: Tensors, queries: int, count: int) -> _Results:
            k, v = (
                tensors.swapped(tensors.new(name, (_CELLS, _KV_HEADS, size), one)) for one in stored
            )
            masked = tensors.new("F16", (count, _CELLS), mask[:count])
            q = tensors.heads(queries, count, heads, size)
            result = tensors.attention(q, k, v, masked, scale)
            return [(result, (count, heads, size)), (queries, (count, heads * size))]

        def build(tensors: Tensors, weight: int, count: int) -> _Results:
            given = tensors.new("F32", (count, _COLUMNS), rows[:count])
            return behind(tensors, tensors.product(weight, given), count)

        with self._placed("Q8_0", raw, (heads * size, _COLUMNS), self._layout, build) as ours:
            if ours is None:
                return
            passes = {count: ours(count) for count in self._counts}
        queries = passes[most][1]
        keys, values = (self._stored(name, one, size) for one in stored)
        exact = _attended(queries.reshape(most, heads, size), keys, values, seen, scale)
        fault = self._attention_fault(name, exact, passes)

        def is_ggmls(count: int) -> bool:
            result, given = passes[count]
            other = self._computed(
                lambda tensors: behind(tensors, tensors.new("F32", given.shape, given), count)
            )
            return np.array_equal(result, other[0])

        # What the kernels leave to ggml is as exact as that is, and promises no bits.
        if fault is not None and not all(map(is_ggmls, self._counts)):
            yield f"attention over {name} with heads of {size} {fault}"

    def _attention_fault(
        self, name: str, exact: Values, passes: dict[int, list[Values]]
    ) -> str | None:
        most = self._counts[-1]
        whole = passes[most][0]
        error = np.abs(whole - exact).max()
        if not error <= _ATTENTION_ERROR[name]:
            return f"with n = {most} is wrong by {error:.1g}"
        for count, some in passes.items():
            if not np.array_equal(some[0], whole[:count]):
                return f"with n = {count} gives other bits than with n = {most}"
        return None

    def _stored(self, name: str, raw: Bytes, size: int) -> Values:
        """Keys or values as they are stored: float32 [cells, kv heads, size]."""
        return self._dequantized(name, raw, _CELLS * _KV_HEADS, size).reshape(
            _CELLS, _KV_HEADS, size
        )

    def _dequantized(self, name: str, raw: Bytes, rows: int, columns: int) -> Values:
        def build(tensors: Tensors) -> _Results:
            weight = tensors.new(name, (rows, columns), raw)
            numbers = tensors.new("I32", (rows,), np.arange(rows, dtype=np.int32))
            return [(tensors.rows_of(weight, numbers), (rows, columns))]

        return self._computed(build)[0]


def _products(rows: Values, weight: Values) -> Values:
    """[n, k] and [m, k] -> [n, m]; not by numpy's BLAS, whose threads wait for ggml's."""
    return np.asarray(np.einsum("nk,mk->nm", rows, weight))


def _rounding(name: str, rows: Values) -> Values:
    """Variance of what rounding does to each activation: float32 [n, columns].

    Behind quantized weights they become 8-bit integers with a scale for each block; behind others
    they are rounded to the weight's type at most.
    """
    if name in ("F32", "F16", "BF16"):
        bits = {"F32": 18, "F16": 11, "BF16": 8}[name]
        return (rows * np.float32(2.0**-bits)) ** 2 / 3.0
    blocks = np.abs(rows).reshape(len(rows), -1, _BLOCK)
    steps = np.repeat(blocks.max(-1) / 127.0, _BLOCK, axis=1)
    return np.asarray(steps**2 / 12.0, np.float32)


def _attended(
    queries: Values, keys: Values, values: Values, seen: npt.NDArray[np.bool_], scale: float
) -> Values:
    """Attention: queries [n, heads, d], keys and values [cells, kv heads, d] -> [n, heads, d]."""
    # In float64, as float32 has denormal shares, which take the processor a hundred times as long.
    k, v = (np.repeat(one.astype(np.float64), _GROUP, axis=1) for one in (keys, values))
    scores = np.einsum("nhd,chd->nhc", queries.astype(np.float64), k) * scale
    scores = np.where(seen[:, None, :], scores, -np.inf)
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)
    return np.asarray(np.einsum("nhc,chd->nhd", shares, v), np.float32)
