"""Measuring what passes cost, on the embedded draft model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import localspec
from localspec import Cancelled, ModelOptions, SamplingParams
from localspec.decoding.sampling import Rows
from localspec.llama.context import Context
from localspec.llama.model import Model
from localspec.policy import calibration
from localspec.policy.calibration import FAR_LENGTH, calibrate
from localspec.policy.cost_curve import SIZES, CostCurve
from tests.support import ggufs, inside
from tests.support.toys import Follows, ToyCache

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


class Striding(ToyCache):
    """A cache whose passes are dearer until some of their size have followed each other.

    Such are llama.cpp's, which builds a graph anew where the size changes, and those of its CUDA
    backend, which records a graph in the second pass like the one before and then replays it, and
    loads the kernels for a size before the first pass.
    """

    UNIT = 0.001

    def __init__(self) -> None:
        super().__init__(Follows({}, 4), capacity=1024)
        self.size = self.row = 0
        self.sizes: set[int] = set()

    def extend(self, tokens: Sequence[int], outputs: int = 1) -> Rows:
        before, rows = self.native_seconds, super().extend(tokens, outputs)
        self.row = self.row + 1 if len(tokens) == self.size else 1
        self.size = len(tokens)
        dearer = {1: 0.5, 2: 0.8}.get(self.row, 0.0) + 5.0 * (self.size not in self.sizes)
        self.sizes.add(self.size)
        self.native_seconds = before + self.UNIT * (1.0 + 0.1 * len(tokens) + dearer)
        return rows


def test_passes_are_measured_as_answers_make_them() -> None:
    """A plain pass follows another one and a verifying pass does not; and where passes are brief,
    the first of a size does not count."""
    curve = CostCurve()
    assert calibrate(Striding(), curve, AMPLE)
    assert curve.seconds(1, 0) == pytest.approx(1.1 * Striding.UNIT, rel=0.02)
    for n in SIZES[1:]:
        assert curve.seconds(n, 0) == pytest.approx((1.5 + 0.1 * n) * Striding.UNIT, rel=0.02), n


class Disturbed(ToyCache):
    """A cache some of whose passes take three times as long, by their number."""

    SECONDS = 0.05

    def __init__(self, slow: range) -> None:
        super().__init__(Follows({}, 4), capacity=FAR_LENGTH)
        self.slow, self.passes = slow, 0

    def extend(self, tokens: Sequence[int], outputs: int = 1) -> Rows:
        before, rows = self.native_seconds, super().extend(tokens, outputs)
        self.native_seconds = before + self.SECONDS * (3.0 if self.passes in self.slow else 1.0)
        self.passes += 1
        return rows


@pytest.mark.parametrize("slow", [range(2, 24), range(33, 99)], ids=["at first", "at last"])
def test_a_busy_moment_is_noticed_and_plain_passes_are_known_all_the_same(slow: range) -> None:
    passes, curve = Disturbed(slow), CostCurve()
    assert not calibrate(passes, curve, AMPLE)
    assert slow.start < passes.passes
    assert curve.seconds(1, 0) == pytest.approx(Disturbed.SECONDS)
    assert calibrate(Disturbed(range(0)), curve, AMPLE)


# A stored curve is compared with the machine before it is believed.

OPTIONS = ModelOptions(context=256, threads=1)


@pytest.mark.nightly
def test_an_engine_measures_anew_what_does_not_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    # Whatever else this machine does: else it would be measured again.
    monkeypatch.setattr(calibration, "calibrate", lambda *arguments: calibrate(*arguments) or True)
    greedy = SamplingParams(temperature=0)
    with localspec.load(options=OPTIONS) as engine:
        engine.generate("Once", max_tokens=2, sampling=greedy)
        engine.profile.target.learn({4: 50 * engine.profile.target.seconds(4, 0)}, 0)
        poisoned = engine.profile.target.seconds(4, 0) / engine.profile.target.seconds(1, 0)
        assert poisoned > 20
    with localspec.load(options=OPTIONS) as engine:
        answer = engine.generate("Once", max_tokens=2, sampling=greedy)
        assert answer.stats.calibration_seconds == 0.0, "too little was decoded since for a look"
        engine.profile.budget.seconds += 1000.0
    with localspec.load(options=OPTIONS) as engine:
        poisoned = engine.profile.target.seconds(4, 0) / engine.profile.target.seconds(1, 0)
        assert poisoned > 20
        answer = engine.generate("Once", max_tokens=2, sampling=greedy)
        assert answer.stats.calibration_seconds > 0.0
        known = engine.profile.target
        assert known.seconds(4, 0) / known.seconds(1, 0) < poisoned / 2


@pytest.mark.nightly
def test_a_look_costs_nothing_of_the_prompt() -> None:
    """In the middle of a conversation its text would have to be read again."""
    greedy, text = SamplingParams(temperature=0), "Once upon a time there was a fox. " * 8
    with localspec.load(options=OPTIONS) as engine:
        engine.generate("Once", max_tokens=2, sampling=greedy)
    with localspec.load(options=OPTIONS) as engine:
        engine.generate(text, max_tokens=2, sampling=greedy)
        engine.profile.budget.seconds += 1000.0
        answer = engine.generate(f"{text} The fox", max_tokens=8, sampling=greedy)
        assert answer.stats.calibration_seconds > 0.0
        assert answer.stats.cached_tokens > 60
        plain = engine.generate(
            f"{text} The fox",
            max_tokens=8,
            sampling=greedy,
            drafting=localspec.Drafting(drafter="none"),
        )
        assert answer.text == plain.text
