"""Forecast of the speed-up that a draft model gives a target, before it is measured.

A draft of k tokens costs k draft passes and one of the target over k + 1 tokens, and yields
1 + a + … + a^k tokens (Leviathan et al. 2023, equation 1). Costs come from the bytes that a pass
reads; acceptance is estimated from size and family.
"""

import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from localspec import paths
from localspec.decoding.sources import Cache
from localspec.errors import LocalspecError
from localspec.gguf.dimensions import n_layers
from localspec.gguf.file import GGUFFile
from localspec.gguf.reader import read_gguf
from localspec.hub.local import distilled_drafts
from localspec.identity import content_identity
from localspec.llama import kernels_file
from localspec.pairing.memory import PairUse
from localspec.pairing.rules import WARN, Check, active_share
from localspec.policy.calibration import calibrate
from localspec.policy.cost_curve import CostCurve

DEEPEST = 8
PAYS = 1.05
"""Speed-ups below this are not worth a second model in memory."""
ON_DEVICE, STOCK = 0.04, 0.35
"""Cost of each further token of a pass, in T(1): on a GPU or over a network, and with llama.cpp's
CPU kernels."""
WITH_KERNELS = {"avx512": 0.06, "avxvnni": 0.08, "avx2": 0.15}
"""The same with localspec's CPU kernels, by instruction set, as measured (dev/kernels.md)."""
OTHER_KERNELS = 0.12
"""The same, for instruction sets that were not measured."""
ADDED_EXPERTS = 0.5
"""Experts that a further token adds, relative to independent routing."""
UNRELATED_ACCEPTANCE = 0.1
"""Acceptance of a draft of another family and vocabulary, unless measured."""
TARGET = "localspec.distill.target"
ACCEPTANCE = "localspec.distill.acceptance"
"""Metadata keys of drafts trained here: the target's `content_identity`, and the acceptance on
held-out answers."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """Expected performance of a pair. `speed_up`: over plain decoding at the best depth; `cost`: of
    a draft pass, in target passes; `acceptance`: probability per drafted token; `measured`:
    whether the speed-up was measured on this machine."""

    speed_up: float
    cost: float
    acceptance: float
    measured: bool = False

    @property
    def pays(self) -> bool:
        return self.speed_up >= PAYS


def forecast(target: GGUFFile, draft: GGUFFile, checks: Iterable[Check], use: PairUse) -> Forecast:
    """Forecast for a usable pair."""
    cost = relative_cost(target, draft, accelerated=use.accelerated)
    acceptance = trained_acceptance(target, draft) or likely_acceptance(cost, checks)
    return best(cost, acceptance, with_experts(target, curve(_growth(use))))


def _growth(use: PairUse) -> float:
    if use.accelerated or use.options.rpc:
        return ON_DEVICE
    kernels = kernels_file.expected() if use.options.kernels != kernels_file.OFF else None
    return STOCK if kernels is None else WITH_KERNELS.get(kernels, OTHER_KERNELS)


def curve(growth: float) -> tuple[float, ...]:
    """T(n) ÷ T(1), n = 1 … DEEPEST + 1."""
    return tuple(1.0 + growth * n for n in range(DEEPEST + 1))


def with_experts(target: GGUFFile, curve: Sequence[float]) -> tuple[float, ...]:
    """The cost curve plus the cost of the experts that each further token reads."""
    experts = [(tensor.size * share, share) for tensor, share in active_share(target) if share < 1]
    if not experts:
        return tuple(curve)
    chosen, read = experts[0][1], sum(size for size, _ in experts) / active_bytes(target)
    return tuple(
        cost + ADDED_EXPERTS * read * ((1.0 - (1.0 - chosen) ** n) / chosen - 1.0)
        for n, cost in enumerate(curve, 1)
    )


def measured_curve(passes: Cache, seconds: float) -> tuple[float, ...]:
    """Measure the cost curve in about `seconds`. The cache needs room for 16 tokens, and is left
    empty. Raises the errors of `Context.extend`."""
    costs = CostCurve()
    calibrate(passes, costs, seconds)
    plain = costs.seconds(1, 0)
    return tuple(costs.seconds(n, 0) / plain for n in range(1, DEEPEST + 2))


def best(cost: float, acceptance: float, curve: Sequence[float]) -> Forecast:
    """Forecast at the depth with the highest speed-up; `curve` is T(n) ÷ T(1) for n = 1, 2, …"""
    speed_up = tokens = 1.0
    for depth in range(1, min(DEEPEST, len(curve) - 1) + 1):
        tokens += acceptance**depth
        speed_up = max(speed_up, tokens / (depth * cost + curve[depth]))
    return Forecast(speed_up, cost, acceptance)


def relative_cost(target: GGUFFile, draft: GGUFFile, *, accelerated: bool) -> float:
    """Cost of a draft pass over one token in target passes, from the bytes that both read."""
    mine, other = active_bytes(target), active_bytes(draft)
    if not mine:
        return math.inf
    cost = 1.1 * other / mine + 0.01
    if accelerated:
        # Small passes on a GPU are bound by kernel launches, so they scale with the layers.
        cost = max(cost, 0.5 * n_layers(draft) / max(1, n_layers(target)))
    return cost


def active_bytes(file: GGUFFile) -> int:
    """Bytes of the weights that are read for a token."""
    return int(sum(tensor.size * share for tensor, share in active_share(file)))


def likely_acceptance(cost: float, checks: Iterable[Check]) -> float:
    """Estimated acceptance: higher for larger drafts, and for drafts of the same family."""
    guess = 0.72 + 0.08 * math.log10(max(1e-3, min(1.0, cost)) / 0.1)
    worse = {"family": 0.08, "token ids": 0.1, "chat template": 0.05, "BOS, EOS, EOT": 0.03}
    worse["tokenizer"] = 0.03
    warned = {check.rule for check in checks if check.verdict == WARN}
    if {"family", "token ids"} <= warned:
        return UNRELATED_ACCEPTANCE
    return max(0.2, min(0.85, guess - sum(worse.get(rule, 0.0) for rule in warned)))


def trained_acceptance(target: GGUFFile, draft: GGUFFile) -> float | None:
    """Acceptance on this target's answers; None for a draft that was not trained on them."""
    identity, rate = draft.text(TARGET), draft.metadata.get(ACCEPTANCE)
    if identity is None or not isinstance(rate, float) or not 0.0 <= rate <= 1.0:
        return None
    try:
        return rate if identity == content_identity(target.path) else None
    except OSError:
        return None


def best_trained(target: Path) -> Path | None:
    """The draft trained for a target, here or as part of the built-in pair, with the highest
    acceptance."""
    found: list[tuple[float, Path]] = []
    here = [place.path for place in distilled_drafts()]
    for path in (paths.embedded(paths.EMBEDDED_DRAFT), *here):
        with suppress(LocalspecError):
            rate = trained_acceptance(read_gguf(target), read_gguf(path))
            if rate is not None:
                found.append((rate, path))
    return max(found)[1] if found else None
