"""How well `localspec doctor` predicts what a model costs in another quantization.

    python -m tools.quantizations --draft draft.gguf a-Q4_0.gguf a-Q4_K_M.gguf

Every file is measured as doctor does, all files in turns, as the machine may be faster at one time
than at another; and from every one the others are predicted: T(n), plain tokens per second, and
those with drafts. Printed is predicted ÷ measured; 1 is right.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from statistics import mean

import localspec
from localspec import ModelOptions
from localspec.doctor.checkup import SIZES, PairMeasurements, TextKind, measure_pair
from localspec.doctor.type_advice import forecasts
from localspec.doctor.type_costs import LONG, measure_types
from localspec.gguf.description import quantization
from localspec.gguf.reader import read_gguf
from localspec.llama.options import AUTO, thread_count


def _merged(rounds: list[PairMeasurements]) -> PairMeasurements:
    """What came out of several measurements of one pair: of all its answers, and the mean costs."""
    kinds: dict[str, TextKind] = {}
    for kind in (kind for found in rounds for kind in found.kinds):
        all_ = kinds.setdefault(kind.name, TextKind(kind.name))
        all_.tested, all_.accepted = all_.tested + kind.tested, all_.accepted + kind.accepted
        for sums, more in ((all_.plain, kind.plain), (all_.planned, kind.planned)):
            sums[:] = [sums[0] + more[0], sums[1] + more[1]]
    drafts = [found.draft_seconds for found in rounds if found.draft_seconds is not None]
    return replace(
        rounds[0],
        curve={n: mean(found.curve[n] for found in rounds) for n in SIZES},
        draft_seconds=mean(drafts) if drafts else None,
        kinds=tuple(kinds.values()),
    )


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
    parser.add_argument("--rounds", type=int, default=3, help="that these are split into")
    parser.add_argument("--ctx", type=int, default=1024)
    parser.add_argument("--threads", default=AUTO)
    said = parser.parse_args()
    options = ModelOptions(context=said.ctx, threads=thread_count(said.threads))
    turns: dict[Path, list[PairMeasurements]] = {path: [] for path in said.files}
    for _ in range(said.rounds):
        for path in said.files:
            with localspec.load(path, draft=said.draft, options=options) as engine:
                turns[path].append(measure_pair(engine, said.seconds / said.rounds))
    measured = {}
    for path in said.files:
        found = _merged(turns[path])
        costs = measure_types(read_gguf(path), options, LONG)
        types = forecasts(found, costs)
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
