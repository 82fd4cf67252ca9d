"""Measuring what passes cost, on the embedded draft model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from localspec import Cancelled, ModelOptions
from localspec.decoding.sampling import Rows
from localspec.llama.context import Context
from localspec.llama.model import Model
from localspec.policy.calibration import FAR_LENGTH, calibrate
from localspec.policy.cost_curve import SIZES, CostCurve
from tests.support import ggufs, inside

AMPLE = 60.0  # seconds: whatever there is to measure is measured
NONE = 0.0


@pytest.fixture(scope="module")
def model(draft_path: Path) -> Iterator[Model]:
    with Model(draft_path, ModelOptions()) as opened:
        yield opened


def opened(model: Model, context: int) -> Context:
    return Context(model, ModelOptions(context=context, threads=1))


@pytest.fixture
def context(model: Model) -> Iterator[Context]:
    made = opened(model, 256)
    yield made
    made.close()


def test_every_size_is_measured_where_there_is_time(context: Context) -> None:
    curve = CostCurve()
    context.extend([1, 2, 3])
    calibrate(context, curve, AMPLE)
    table = curve.sizes
    assert set(table) == {n for n in SIZES if n <= context.max_draft + 1}
    assert all(seconds > 0.0 for seconds in table.values())
    assert curve.seconds(32, 0) > curve.seconds(1, 0)


def test_without_time_the_most_telling_sizes_are_measured(context: Context) -> None:
    curve = CostCurve()
    calibrate(context, curve, NONE)
    table = curve.sizes
    assert set(table) == set(SIZES[:2])


def test_longer_context_is_measured_too(model: Model) -> None:
    context, curve = opened(model, 1024), CostCurve()
    calibrate(context, curve, AMPLE)
    assert set(curve.sizes) == set(SIZES)
    assert curve.length < FAR_LENGTH
    assert sum(curve.slope) > 0.0, "what the cache adds was measured"
    assert context.tokens == []
    assert curve.seconds(4, 8 * FAR_LENGTH) > curve.seconds(4, 0) > 0.0
    context.close()


@pytest.mark.parametrize("capacity", [8, 16, 17, 24, 40])
def test_short_context_bounds_the_sizes(
    model: Model, capacity: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No pass is longer than the cache; one over a single token always fits."""
    context, curve = opened(model, capacity), CostCurve()
    lengths = []
    extend = context.extend

    def watched(tokens: list[int], outputs: int = 1) -> Rows:
        rows = extend(tokens, outputs)
        lengths.append(len(context.tokens))
        return rows

    monkeypatch.setattr(context, "extend", watched)
    calibrate(context, curve, AMPLE)
    assert curve.seconds(1, 0) > 0.0
    assert max(lengths) <= max(capacity, 9)
    context.close()


@pytest.mark.parametrize("passes", [0, 1, 2, 7])
def test_cancelled_calibration_teaches_nothing(
    model: Model, passes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    context, curve, left = opened(model, 256), CostCurve(), passes

    def cancel_in_time(context: Context, _: object) -> None:
        nonlocal left
        if left == 0:
            context.cancel()
        left -= 1

    with monkeypatch.context() as patch:
        inside.before_each_pass(patch, cancel_in_time)
        with pytest.raises(Cancelled):
            calibrate(context, curve, AMPLE)
    assert not curve
    assert context.tokens == []
    context.resume()
    calibrate(context, curve, NONE)
    assert curve
    context.close()


def test_recurrent_model_is_measured_without_a_second_context(tmp_path: Path) -> None:
    path = ggufs.tiny_hybrid(tmp_path / "hybrid.gguf")
    with Model(path, ModelOptions()) as model:
        context, curve = opened(model, 1024), CostCurve()
        calibrate(context, curve, AMPLE)
        assert set(curve.sizes) == {n for n in SIZES if n <= context.max_draft + 1}
        assert context.tokens == []
        context.close()


class Striding:
    """A cache whose passes are dearer until some of their size have followed each other.

    Such are llama.cpp's, which builds a graph anew where the size changes, and those of its CUDA
    backend, which records a graph in the second pass like the one before and then replays it, and
    loads the kernels for a size before the first pass.
    """

    capacity, max_draft, recurrent = 1024, 63, False
    UNIT = 0.001

    def __init__(self, unit: float = UNIT) -> None:
        self.tokens: list[int] = []
        self.native_seconds = 0.0
        self.passes = 0
        self._unit, self._size, self._row = unit, 0, 0
        self._sizes: set[int] = set()

    def filler(self, count: int) -> list[int]:
        return [0] * count

    def extend(self, tokens: Sequence[int], outputs: int = 1) -> Rows:
        self._row = self._row + 1 if len(tokens) == self._size else 1
        self._size = len(tokens)
        self.passes += 1
        dearer = {1: 0.5, 2: 0.8}.get(self._row, 0.0)
        dearer += 0.0 if self._size in self._sizes else 5.0
        self._sizes.add(self._size)
        self.native_seconds += self._unit * (1.0 + 0.1 * len(tokens) + dearer)
        self.tokens += tokens
        return np.zeros((outputs, 1), np.float32)

    def truncate(self, length: int) -> None:
        del self.tokens[length:]

    def clear(self) -> None:
        self.tokens.clear()

    def checkpoint(self) -> None:
        pass


def test_a_plain_pass_follows_another_one_and_a_verifying_pass_does_not() -> None:
    passes, curve = Striding(), CostCurve()
    assert calibrate(passes, curve, AMPLE)
    assert curve.seconds(1, 0) == pytest.approx(1.1 * Striding.UNIT, rel=0.02)
    assert curve.seconds(4, 0) == pytest.approx(1.9 * Striding.UNIT, rel=0.02)


def test_the_first_pass_of_a_size_does_not_count_where_passes_are_brief() -> None:
    passes, curve = Striding(), CostCurve()
    assert calibrate(passes, curve, AMPLE)
    for n in SIZES[2:]:
        assert curve.seconds(n, 0) == pytest.approx((1.5 + 0.1 * n) * Striding.UNIT, rel=0.02), n
