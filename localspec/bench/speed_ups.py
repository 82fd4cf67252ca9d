"""Speed-ups over prompts that two arms have in common, and the interval of their mean.

Student's t: at six prompts, the bootstrap's percentiles are too narrow (Hesterberg 2015, "What
Teachers Should Know About the Bootstrap"). Ratios are taken as logarithms.
"""

import math
from collections.abc import Iterable, Sequence
from statistics import median

import numpy as np
from numpy.typing import NDArray

from localspec.bench.samples import Sample

MIN_PROMPTS = 6
"""Minimum number of prompts for which an interval is shown."""
METHOD = (
    "95%: Student's t interval of the mean ratio to plain localspec (geometric), paired by "
    f"prompt and turn, from {MIN_PROMPTS} prompts on"
)


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
