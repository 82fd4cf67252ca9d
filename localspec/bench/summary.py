"""Compute figures from samples: speed-ups over the prompts that two arms have in common, and the
interval of their mean.

Student's t: at six prompts, the bootstrap's percentiles are too narrow (Hesterberg 2015, "What
Teachers Should Know About the Bootstrap"). Ratios are taken as logarithms.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, geometric_mean, median

import numpy as np
from numpy.typing import NDArray

from localspec.bench.arms import PLAIN
from localspec.bench.samples import Sample

MIN_PROMPTS = 6
"""Minimum number of prompts for which an interval is shown."""
METHOD = (
    "95%: Student's t interval of the mean ratio to plain localspec (geometric), paired by "
    f"prompt and turn, from {MIN_PROMPTS} prompts on"
)
ALL = "(all)"
"""All suites together: totals, and geometric means of the speed-ups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One arm on one suite (or ALL) at one temperature; None where unknown.

    Attributes:
        tokens, seconds: per turn, at each prompt's median pace over turns.
        speed_up: against plain decoding: geometric mean over common prompts; for ALL, of the
            suites' means.
        interval: of the speed-up (`mean_interval`).
        acceptance: accepted ÷ tested.
        kept: accepted ÷ drafted.
        calibration_seconds: per answer, before it.
    """

    arm: str
    suite: str
    temperature: float
    prompts: int
    tokens: float
    seconds: float
    tokens_per_second: float
    speed_up: float | None = None
    interval: tuple[float, float] | None = None
    acceptance: float | None = None
    kept: float | None = None
    tokens_per_pass: float | None = None
    calibration_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Equality:
    """Greedy answers of an arm compared with plain decoding: those with equal tokens, and all."""

    arm: str
    equal: int
    total: int


@dataclass(frozen=True, slots=True)
class PairSummary:
    """`cells`: by temperature, then by arm, all suites together first."""

    cells: tuple[Cell, ...]
    equality: tuple[Equality, ...]


def summarise(samples: Sequence[Sample]) -> PairSummary:
    """All figures; speed-ups against plain decoding, if it was measured."""
    cells = []
    for temperature in dict.fromkeys(s.temperature for s in samples):
        here = [s for s in samples if s.temperature == temperature]
        base = [s for s in here if s.arm == PLAIN]
        for arm in dict.fromkeys(s.arm for s in here):
            mine = [s for s in here if s.arm == arm]
            ratios = log_ratios(mine, base)
            cells.append(_cell(mine, ALL, [*ratios.values()]))
            for suite in dict.fromkeys(s.suite for s in mine):
                logs = [ratios[suite]] if suite in ratios else []
                cells.append(_cell([s for s in mine if s.suite == suite], suite, logs))
    return PairSummary(tuple(cells), tuple(equalities(samples)))


def equalities(samples: Iterable[Sample]) -> list[Equality]:
    """Compare the greedy answers of each arm with plain decoding."""
    greedy = [s for s in samples if s.temperature == 0 and s.token_ids]
    plain: dict[tuple[str, str], tuple[int, ...]] = {}
    for sample in greedy:
        if sample.arm == PLAIN:
            plain.setdefault((sample.suite, sample.prompt), sample.token_ids)
    found = []
    for arm in dict.fromkeys(s.arm for s in greedy if s.arm != PLAIN):
        compared = [s for s in greedy if s.arm == arm and (s.suite, s.prompt) in plain]
        if compared:
            equal = sum(s.token_ids == plain[s.suite, s.prompt] for s in compared)
            found.append(Equality(arm, equal, len(compared)))
    return found


def _cell(samples: Sequence[Sample], suite: str, ratios: Sequence[np.ndarray]) -> Cell:
    # For each prompt, mean tokens at the median pace over turns.
    prompts = [[*turns.values()] for turns in by_prompt(samples).values()]
    means = [fmean(s.tokens for s in turns) for turns in prompts]
    paces = [median(s.pace for s in turns) for turns in prompts]
    tokens = sum(means, 0.0)
    seconds = sum((n * pace for n, pace in zip(means, paces, strict=True)), 0.0)
    before = [s.calibration_seconds for s in samples if s.calibration_seconds is not None]
    return Cell(
        arm=samples[0].arm,
        suite=suite,
        temperature=samples[0].temperature,
        prompts=len(prompts),
        tokens=tokens,
        seconds=seconds,
        tokens_per_second=tokens / seconds if seconds else 0.0,
        speed_up=geometric_mean(np.exp(logs.mean()) for logs in ratios) if ratios else None,
        interval=mean_interval(ratios) if ratios else None,
        acceptance=_ratio(samples, "accepted", "tested"),
        kept=_ratio(samples, "accepted", "drafted"),
        tokens_per_pass=_ratio(samples, "tokens", "passes"),
        calibration_seconds=sum(before) / len(before) if before else None,
    )


def _ratio(samples: Sequence[Sample], part: str, whole: str) -> float | None:
    known = [s for s in samples if None not in (getattr(s, part), getattr(s, whole))]
    total = sum(getattr(s, whole) for s in known)
    return sum(getattr(s, part) for s in known) / total if total else None


def log_ratios(mine: Iterable[Sample], base: Iterable[Sample]) -> dict[str, NDArray[np.float64]]:
    """The natural logarithm of each prompt's speed-up, by suite: float64 [prompts].

    Paired by prompt and turn; the median over turns. Suites without common prompts are left out.
    """
    plain, found = by_prompt(base), dict[str, list[float]]()
    for prompt, turns in by_prompt(mine).items():
        others = plain.get(prompt, {})
        paces = [(others[n].pace, sample.pace) for n, sample in turns.items() if n in others]
        if paces:
            ratio = median(math.log(theirs / ours) for theirs, ours in paces)
            found.setdefault(prompt[0], []).append(ratio)
    return {suite: np.array(logs, np.float64) for suite, logs in found.items()}


def by_prompt(samples: Iterable[Sample]) -> dict[tuple[str, str], dict[int, Sample]]:
    """Samples with a measurable pace, by prompt and turn."""
    found: dict[tuple[str, str], dict[int, Sample]] = {}
    for sample in samples:
        if sample.tokens > 0 and sample.seconds > 0:
            found.setdefault((sample.suite, sample.prompt), {})[sample.turn] = sample
    return found


def mean_interval(logs: Sequence[NDArray[np.float64]]) -> tuple[float, float] | None:
    """The 95% interval of exp(mean of the suites' mean logs); None below MIN_PROMPTS, or without
    scipy.

    Stratified by suite, degrees of freedom after Welch (1938) and Satterthwaite (1946). If a suite
    has a single prompt, the suites are the sample. `logs`: of each suite, float64 [prompts], at
    least one prompt each.
    """
    try:
        from scipy.stats import t
    except ImportError:
        return None
    if sum(map(len, logs)) < MIN_PROMPTS:
        return None
    means = np.array([suite.mean() for suite in logs])
    if min(map(len, logs)) < 2:
        return mean_interval([means])
    # Squared standard errors of the suites' shares in the mean.
    parts = np.array([suite.var(ddof=1) / len(suite) for suite in logs]) / len(logs) ** 2
    squared, middle, half = parts.sum(), means.mean(), 0.0
    if squared:
        freedom = squared**2 / (parts**2 / [len(suite) - 1 for suite in logs]).sum()
        half = float(t.ppf(0.975, freedom) * math.sqrt(squared))
    return math.exp(middle - half), math.exp(middle + half)
