"""Predict tokens per second and × plain of larger models, from sizes and a machine's speed.

    python -m tools.predict [--machine CORES:GB/S …] [--rate 340] [--accepted 0.7]

A pass over n tokens takes the square root of the sum of two squares, reading the weights and n
times their arithmetic, and a constant for each layer. The gain by a draft is the forecast of
`localspec show` (`localspec.pairing.forecast`) for this curve.
"""

from __future__ import annotations

import argparse
import math
from itertools import product
from typing import NamedTuple

from localspec.pairing.forecast import ADDED_EXPERTS, DEEPEST, ON_DEVICE, Forecast, best

PER_CORE = 29.0
"""GB/s that one core reads (Zen 4; `tools.passes` prints it)."""
LAYER = 36e-6
"""Seconds per layer apart from its weights (Zen 4, SmolLM2)."""
BITS = {"Q4_0": 4.55, "Q4_K_M": 4.9, "Q8_0": 8.5}


class Machine(NamedTuple):
    """`read`: GB/s; `rate`: 10⁹ operations/s; `layer`: seconds; `growth`: of passes per token, in
    T(1), besides the part that follows from the rest."""

    name: str
    read: float
    rate: float
    layer: float = LAYER
    growth: float = 0.0

    def seconds(self, model: Model, bits: float, n: int = 1) -> float:
        """A pass over n tokens."""
        more = ((1 - (1 - model.chosen) ** n) / model.chosen - 1) * ADDED_EXPERTS * model.experts
        reading = model.weights * bits / 8 * (1 + more) / self.read
        return math.hypot(reading, n * 2 * model.weights / self.rate) + model.layers * self.layer


class Model(NamedTuple):
    """Weights that a token uses, in 10⁹; layers; of these weights the experts' share, and the share
    of all experts that a token uses."""

    weights: float
    layers: int
    experts: float = 0.0
    chosen: float = 1.0


H100 = Machine("H100", 2700.0, 1e6, 30e-6, ON_DEVICE)
"""Of its 3,350 GB/s; a layer as R0's there (dev/gpu.md)."""
SMOLLM2, SMALL = (Model(0.135, 30), 5.8), (Model(0.6, 28), 8.5)
PAIRS = {
    "R0": (Model(1.53, 30), SMOLLM2),
    "1 B": (Model(1.2, 16), SMOLLM2),
    "3 B": (Model(3.1, 28), SMOLLM2),
    "8 B": (Model(8.2, 36), SMALL),
    "14 B": (Model(14.8, 40), SMALL),
    "30 B-A3B": (Model(3.3, 48, 0.75, 8 / 128), SMALL),
}
"""Target, and the draft model with its bits per weight."""


def predict(
    machine: Machine, target: Model, draft: tuple[Model, float], bits: float, accepted: float
) -> tuple[float, Forecast]:
    """Plain tokens per second, and the forecast."""
    passes = [machine.seconds(target, bits, n) for n in range(1, DEEPEST + 2)]
    curve = [one / passes[0] + machine.growth * n for n, one in enumerate(passes)]
    return 1 / passes[0], best(machine.seconds(*draft) / passes[0], accepted, curve)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    usual = [f"{cores}:{read}" for cores, read in product((2, 8, 16), (50, 80, 200))]
    parser.add_argument("--machine", nargs="+", default=usual, help="cores and GB/s")
    parser.add_argument("--rate", type=float, default=340.0, help="10⁹ operations/s of a core")
    parser.add_argument("--accepted", type=float, default=0.7, help="of drafted tokens")
    args = parser.parse_args()
    machines = [H100]
    for cores, read in reversed([map(float, one.split(":")) for one in args.machine]):
        name = f"{cores:.0f} cores, {read:.0f} GB/s"
        machines.insert(0, Machine(name, min(read, cores * PER_CORE), cores * args.rate))
    print(f"| target | {' | '.join(one.name for one in machines)} |")
    print("|---|" + "---:|" * len(machines))
    for (name, (target, draft)), (quant, bits) in product(PAIRS.items(), BITS.items()):
        found = [predict(one, target, draft, bits, args.accepted) for one in machines]
        cells = [f"{plain:.0f}, {one.speed_up:.2f} ×" for plain, one in found]
        print(f"| {name} {quant} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
