"""How well `localspec doctor` predicts what a model costs in another quantization.

    python -m tools.quantizations --draft draft.gguf a-Q4_0.gguf a-Q4_K_M.gguf

Every file is measured as doctor does, and from every one the others are predicted: T(n), plain
tokens per second, and those with drafts. Printed is predicted ÷ measured; 1 is right.
"""

from __future__ import annotations

import argparse
import math
from itertools import permutations
from pathlib import Path

import localspec
from localspec import ModelOptions
from localspec.doctor.checkup import SIZES, PairMeasurements, measure_pair
from localspec.doctor.type_advice import forecasts
from localspec.doctor.type_costs import LONG, TypeMeasurements, measure_types
from localspec.gguf.description import quantization
from localspec.gguf.reader import read_gguf
from localspec.llama.options import AUTO, thread_count
from localspec.pairing.quantizations import TypeForecast

_Measured = tuple[PairMeasurements, TypeMeasurements, tuple[TypeForecast, ...]]


def _measure(path: Path, draft: Path | None, options: ModelOptions, seconds: float) -> _Measured:
    with localspec.load(path, draft=draft, options=options) as engine:
        found = measure_pair(engine, seconds)
    costs = measure_types(read_gguf(path), options, LONG)
    return found, costs, forecasts(found, costs)


def _speed(ways: list[list[float]]) -> float:
    """Tokens per second of tokens and seconds by kind of text; NaN where there was no time."""
    seconds = sum(way[1] for way in ways)
    return sum(way[0] for way in ways) / seconds if seconds else math.nan


def _speeds(found: PairMeasurements) -> tuple[float, float]:
    """Tokens per second as measured: plain, and as the planner drafts."""
    return _speed([k.plain for k in found.kinds]), _speed([k.planned for k in found.kinds])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--draft", type=Path)
    parser.add_argument("--seconds", type=float, default=60.0, help="for each pair")
    parser.add_argument("--ctx", type=int, default=1024)
    parser.add_argument("--threads", default=AUTO)
    said = parser.parse_args()
    options = ModelOptions(context=said.ctx, threads=thread_count(said.threads))
    measured = {}
    for path in said.files:
        found, costs, types = _measure(path, said.draft, options, said.seconds)
        quant = quantization(read_gguf(path))
        measured[quant] = found, costs, types
        plain, planned = _speeds(found)
        curve = " ".join(f"{1e3 * found.curve[n]:.1f}" for n in SIZES)
        print(f"{quant}: T(n) {curve} ms; plain {plain:.2f}, drafting {planned:.2f} tok/s")
        print(f"  types timed in {costs.seconds:.1f} s; {costs.why or 'all of them'}")
        for kind in types:
            drafting = "" if kind.drafting is None else f", drafting {kind.drafting:.2f}"
            print(f"  {kind.quant} {kind.size / 1e6:.0f} MB: plain {kind.plain:.2f}{drafting}")
        print(flush=True)
    for one, other in permutations(measured, 2):
        found, costs, types = measured[one]
        theirs = measured[other][0]
        cost = next((cost for cost in costs.costs if cost.quant == other), None)
        forecast = next((kind for kind in types if kind.quant == other), None)
        if cost is None or forecast is None:
            continue
        ratios = [found.curve[n] * cost.relative[n] / theirs.curve[n] for n in SIZES]
        plain, planned = _speeds(theirs)
        drafted = ""
        if forecast.drafting is not None:
            drafted = f"  drafting {forecast.drafting / planned:.2f}"
        print(
            f"{one} → {other}: T(n) {' '.join(f'{ratio:.2f}' for ratio in ratios)}"
            f"  plain {forecast.plain / plain:.2f}{drafted}"
        )


if __name__ == "__main__":
    main()
