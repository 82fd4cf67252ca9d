"""How fast a pair would be with its target in another quantization."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from statistics import mean

from localspec.doctor.checkup import SIZES, PairMeasurements, TextKind
from localspec.doctor.type_costs import TypeMeasurements
from localspec.gguf.description import quantization
from localspec.gguf.file import GGUFFile
from localspec.hub.resolution import FoundModel
from localspec.pairing.forecast import best
from localspec.pairing.quantizations import Advice, TypeForecast


def advice(
    target: FoundModel,
    file: GGUFFile,
    draft: GGUFFile | None,
    found: PairMeasurements,
    costs: TypeMeasurements,
) -> Advice | None:
    """What to expect of each quantization; None where nothing was measured."""
    types = forecasts(found, costs)
    if not types:
        return None
    return Advice(
        target=file.path,
        repository=None if target.repository is None else target.repository.id,
        architecture=file.architecture,
        parameters=file.n_parameters,
        quant=quantization(file),
        draft=None if draft is None else draft.path.name,
        types=types,
        when=date.today().isoformat(),
    )


def forecasts(found: PairMeasurements, costs: TypeMeasurements) -> tuple[TypeForecast, ...]:
    """Tokens per second of each quantization that was timed, the file at hand first.

    A step of depth k yields 1 + a + … + a^k tokens for k passes of the draft model and one of the
    target over k + 1 tokens (`localspec.pairing.forecast`), whose cost is that of the file at hand
    times what was measured for the type. What a plain pass takes is said by plain decoding, where
    there was any: there were more passes of it than a calibration makes. With drafts, the forecasts
    of all types are moved by what that of the file at hand was off.
    """
    if not costs.costs or not all(found.curve.get(n) for n in SIZES):
        return ()
    own = dict(found.curve)
    own[1] *= _off(found.kinds, "plain", dict.fromkeys(_names(found), own[1]))
    drafts = found.draft_seconds is not None and any(
        kind.acceptance is not None for kind in found.kinds
    )
    drafting_off = 1.0
    if drafts:
        drafting_off = _off(found.kinds, "planned", _seconds_a_token(found, own))
    forecast = []
    for cost in costs.costs:
        curve = {n: own[n] * cost.relative[n] for n in SIZES}
        drafting = None
        if drafts:
            drafting = 1.0 / (mean(_seconds_a_token(found, curve).values()) * drafting_off)
        forecast.append(TypeForecast(cost.quant, cost.size, cost.own, 1.0 / curve[1], drafting))
    return tuple(forecast)


def _names(found: PairMeasurements) -> list[str]:
    return [kind.name for kind in found.kinds]


def _seconds_a_token(found: PairMeasurements, curve: Mapping[int, float]) -> dict[str, float]:
    """By kind of text, at the depth that is best for it; only where acceptance was measured."""
    assert found.draft_seconds is not None
    one = curve[1]
    relative = [curve[n] / one for n in SIZES]
    return {
        kind.name: one / best(found.draft_seconds / one, kind.acceptance, relative).speed_up
        for kind in found.kinds
        if kind.acceptance is not None
    }


def _off(kinds: tuple[TextKind, ...], way: str, expected: Mapping[str, float]) -> float:
    """Seconds of a token as measured ÷ as expected, over all kinds that have both."""
    measured = wanted = 0.0
    for kind in kinds:
        tokens, seconds = kind.planned if way == "planned" else kind.plain
        if tokens and seconds and kind.name in expected:
            measured += seconds
            wanted += tokens * expected[kind.name]
    return measured / wanted if wanted else 1.0
