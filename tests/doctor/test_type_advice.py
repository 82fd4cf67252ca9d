"""From costs to tokens per second."""

from __future__ import annotations

from dataclasses import replace

import pytest

from localspec.doctor.checkup import SIZES, PairMeasurements, TextKind
from localspec.doctor.type_advice import forecasts
from localspec.doctor.type_costs import TypeCosts, TypeMeasurements

STEEP = {n: 0.010 * n for n in SIZES}
"""A pass over n tokens costs n passes: drafting never pays."""


def _pair(**changed: object) -> PairMeasurements:
    found = PairMeasurements(
        curve=STEEP,
        draft_seconds=0.001,
        cost=0.1,
        kinds=(TextKind("story", 100, 100),),
        seconds=1.0,
        threads="2 threads",
        partial=False,
        steady=True,
    )
    return replace(found, **changed)  # type: ignore[arg-type]


def _costs(**relative: dict[int, float]) -> TypeMeasurements:
    own = TypeCosts("Q4_K_M", 100, True, dict.fromkeys(SIZES, 1.0))
    others = [TypeCosts(quant, 98, False, of) for quant, of in relative.items()]
    return TypeMeasurements((own, *others), 1.0)


FLAT = {n: 1.0 / n for n in SIZES}
"""Of STEEP: all passes cost the same."""


def test_a_flat_curve_gains_what_its_drafts_bring() -> None:
    own, flat = forecasts(_pair(), _costs(IQ4_NL=FLAT))
    assert own.plain == pytest.approx(100.0)
    assert own.drafting == pytest.approx(100.0), "not drafting is always among the choices"
    assert flat.plain == pytest.approx(100.0)
    # All are accepted: 9 tokens for 8 passes of the draft and one of the target.
    assert flat.drafting == pytest.approx(9 / (8 * 0.001 + 0.010))


def test_kinds_of_text_count_alike() -> None:
    kinds = (TextKind("story", 100, 100), TextKind("noise", 100, 0))
    _, flat = forecasts(_pair(kinds=kinds), _costs(IQ4_NL=FLAT))
    assert 1 / (flat.drafting or 0) == pytest.approx((0.018 / 9 + 0.010) / 2)


def test_what_the_model_of_costs_is_off_moves_all_types() -> None:
    kinds = (TextKind("story", 100, 100, plain=[40.0, 0.4], planned=[40.0, 0.8]),)
    own, flat = forecasts(_pair(kinds=kinds), _costs(IQ4_NL=FLAT))
    assert own.plain == pytest.approx(100.0)
    assert own.drafting == pytest.approx(50.0)
    assert flat.plain == pytest.approx(100.0)
    assert flat.drafting == pytest.approx(0.5 * 500.0)


def test_plain_decoding_says_what_a_plain_pass_takes() -> None:
    """Not what passes over several tokens take."""
    kinds = (TextKind("story", 100, 100, plain=[40.0, 0.2]),)
    own, flat = forecasts(_pair(kinds=kinds), _costs(IQ4_NL=FLAT))
    assert own.plain == pytest.approx(200.0)
    assert own.drafting == pytest.approx(200.0)
    assert flat.plain == pytest.approx(200.0)
    assert flat.drafting == pytest.approx(9 / (8 * 0.001 + 0.010))


def test_without_a_draft_there_is_the_plain_speed() -> None:
    found = _pair(draft_seconds=None, cost=None, kinds=())
    own, other = forecasts(found, _costs(Q8_0=dict.fromkeys(SIZES, 2.0)))
    assert (own.drafting, other.drafting) == (None, None)
    assert own.speed == pytest.approx(100.0)
    assert other.speed == pytest.approx(50.0)


def test_nothing_is_made_of_nothing() -> None:
    assert forecasts(_pair(curve={}), _costs(Q8_0=FLAT)) == ()
    assert forecasts(_pair(), TypeMeasurements((), 1.0, "no time")) == ()
