"""Calibration of pass costs, on the built-in draft model."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import localspec
from localspec import Cancelled, ModelOptions
from localspec.decoding.sampling import Rows
from localspec.llama.context import Context
from localspec.llama.model import Model
from localspec.policy import calibration
from localspec.policy.calibration import calibrate, calibrate_far
from localspec.policy.cost_curve import SIZES, CostCurve
from tests.support import ggufs, inside
from tests.support.asking import PLAIN, ask
from tests.support.sessions import module_model
from tests.support.toys import SuccessorModel, ToyCache

AMPLE = 60.0  # seconds, enough to measure everything
NONE = 0.0


model = module_model("draft_path")


def opened(model: Model, context: int) -> Context:
    return Context.open(model, ModelOptions(context=context, threads=1))


@pytest.fixture
def context(model: Model) -> Iterator[Context]:
    made = opened(model, 256)
    yield made
    made.close()


@pytest.mark.parametrize(("seconds", "sizes"), [(AMPLE, len(SIZES)), (NONE, 2)])
def test_as_many_sizes_are_measured_as_time_allows(
    context: Context, seconds: float, sizes: int
) -> None:
    curve = CostCurve()
    context.extend([1, 2, 3])
    calibrate(context, curve, seconds)
    assert set(curve.sizes) == {n for n in SIZES[:sizes] if n <= context.max_draft + 1}
    assert min(curve.sizes.values()) > 0.0
    assert sizes == 2 or curve.seconds(32, 0) > curve.seconds(1, 0)


def test_long_prompt_shows_the_cost_of_the_cache(model: Model) -> None:
    context, curve = opened(model, 1024), CostCurve()
    calibrate(context, curve, AMPLE)
    assert set(curve.sizes) == set(SIZES)
    assert context.tokens == []
    context.extend(context.filler(520))
    calibrate_far(context, curve, 1.0)
    assert sum(curve.slope) > 0.0
    assert len(context.tokens) == 520
    context.close()


@pytest.mark.parametrize("capacity", [8, 16, 17, 24, 40])
def test_short_contexts(model: Model, capacity: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """No pass is longer than the cache; a plain pass always fits."""
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
def test_cancelled_calibration(model: Model, passes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    context, curve = opened(model, 256), CostCurve()
    with monkeypatch.context() as patch:
        inside.cancel_before(patch, passes)
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


class GraphBuildingCache(ToyCache):
    """A cache whose first passes of a size, and first ones in a row, are slower. llama.cpp builds a
    new graph when the size changes. Its CUDA backend loads the kernels of a size before its first
    pass, records a graph in the second pass in a row, and then replays it."""

    def __init__(self, unit: float) -> None:
        super().__init__(SuccessorModel({}, 4), capacity=1024)
        self.unit = unit  # seconds
        self.size = self.row = 0
        self.kept: list[int] = []  # sizes

    def extend(self, tokens: Sequence[int], outputs: int = 1) -> Rows:
        before, rows = self.native_seconds, super().extend(tokens, outputs)
        self.row = self.row + 1 if len(tokens) == self.size else 1
        self.size = len(tokens)
        extra = {1: 0.5, 2: 0.8}.get(self.row, 0.0) + 5.0 * (self.size not in self.kept)
        self.kept = [*(n for n in self.kept if n != self.size), self.size][-11:]
        self.native_seconds = before + self.unit * (1.0 + 0.1 * len(tokens) + extra)
        return rows


@pytest.mark.parametrize("unit", [0.001, 0.03])
def test_passes_are_measured_in_the_order_of_answers(unit: float) -> None:
    """A short plain pass follows another one, a verifying pass does not. The first pass of a size
    does not count."""
    curve = CostCurve()
    assert calibrate(GraphBuildingCache(unit), curve, AMPLE)
    assert unit > calibration.BRIEF or curve.seconds(1, 0) == pytest.approx(1.1 * unit, rel=0.02)
    for n in SIZES[1:]:
        assert curve.seconds(n, 0) == pytest.approx((1.5 + 0.1 * n) * unit, rel=0.02), n


class DisturbedCache(ToyCache):
    """A cache some of whose passes take three times as long."""

    SECONDS = 0.05

    def __init__(self, slow: range) -> None:
        super().__init__(SuccessorModel({}, 4), capacity=520)
        self.slow, self.passes = slow, 0

    def extend(self, tokens: Sequence[int], outputs: int = 1) -> Rows:
        before, rows = self.native_seconds, super().extend(tokens, outputs)
        self.native_seconds = before + self.SECONDS * (3.0 if self.passes in self.slow else 1.0)
        self.passes += 1
        return rows


@pytest.mark.parametrize("slow", [range(2, 24), range(33, 99)], ids=["at first", "at last"])
def test_busy_moment_is_detected(slow: range) -> None:
    passes, curve = DisturbedCache(slow), CostCurve()
    assert not calibrate(passes, curve, AMPLE)
    assert slow.start < passes.passes
    assert curve.seconds(1, 0) == pytest.approx(DisturbedCache.SECONDS)
    assert calibrate(DisturbedCache(range(0)), curve, AMPLE)


@pytest.mark.parametrize("slow", [1, 2, 3])
def test_interrupted_pass_does_not_raise_the_cost_of_the_cache(slow: int) -> None:
    passes, curve = DisturbedCache(range(slow, slow + 1)), CostCurve()
    curve.learn(dict.fromkeys(SIZES, DisturbedCache.SECONDS), 0)
    passes.extend([0] * 400)
    calibrate_far(passes, curve, 1.0)
    assert curve.two_lengths
    assert curve.seconds(4, 500) == pytest.approx(DisturbedCache.SECONDS)


# Stored curves are compared with the machine before use.

OPTIONS = ModelOptions(context=256, threads=1)


@pytest.mark.nightly
def test_engine_replaces_a_wrong_stored_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    # Independent of the machine's load, which would cause another calibration.
    monkeypatch.setattr(calibration, "calibrate", lambda *arguments: calibrate(*arguments) or True)

    def ratio(curve: CostCurve) -> float:
        return curve.seconds(4, 0) / curve.seconds(1, 0)

    with localspec.load(options=OPTIONS) as engine:
        ask(engine, "Once", count=2).completion()
        engine.profile.target.learn({4: 50 * engine.profile.target.seconds(4, 0)}, 0)
    with localspec.load(options=OPTIONS) as engine:
        stats = ask(engine, "Once", count=2).completion().stats
        assert stats.calibration_seconds == 0.0, "too little was decoded for a comparison"
        engine.profile.budget.seconds += 1000.0
    with localspec.load(options=OPTIONS) as engine:
        poisoned = ratio(engine.profile.target)
        assert poisoned > 20
        assert ask(engine, "Once", count=2).completion().stats.calibration_seconds > 0.0
        assert ratio(engine.profile.target) < poisoned / 2


@pytest.mark.nightly
def test_comparing_a_curve_keeps_the_prompt() -> None:
    """In the middle of a conversation its text would have to be read again."""
    text = "Once upon a time there was a fox. " * 8
    with localspec.load(options=OPTIONS) as engine:
        ask(engine, "Once", count=2).completion()
    with localspec.load(options=OPTIONS) as engine:
        ask(engine, text, count=2).completion()
        engine.profile.budget.seconds += 1000.0
        answer = ask(engine, f"{text} The fox", count=8).completion()
        assert answer.stats.calibration_seconds > 0.0
        assert answer.stats.cached_tokens > 60
        plain = ask(engine, f"{text} The fox", PLAIN, 8).completion()
        assert answer.text == plain.text
