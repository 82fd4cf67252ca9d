"""Speed-ups over prompts that two arms have in common."""

from __future__ import annotations

import math
from collections.abc import Iterable
from statistics import median

import numpy as np
from numpy.typing import NDArray

from localspec.bench.samples import Sample

_Paces = dict[tuple[str, str], dict[int, float]]


def log_ratios(mine: Iterable[Sample], base: Iterable[Sample]) -> NDArray[np.float64]:
    """How many times faster each prompt was answered: float64 [prompts], natural logarithms.

    Answers are paired by prompt and turn, so that a machine that is slower in one turn is slower
    for both; of several turns the median counts. An answer that ended with its first token has no
    pace. Empty where the two have no prompt in common.
    """
    paces, plain = _paces(mine), _paces(base)
    found = []
    for prompt, turns in paces.items():
        others = plain.get(prompt, {})
        ratios = [math.log(others[turn] / pace) for turn, pace in turns.items() if turn in others]
        if ratios:
            found.append(median(ratios))
    return np.array(found, dtype=np.float64)


def geometric_mean(values: Iterable[float]) -> float:
    """Of positive numbers, at least one."""
    return float(np.exp(np.mean(np.log(list(values)))))


def _paces(samples: Iterable[Sample]) -> _Paces:
    """Seconds per token by prompt and turn."""
    found: _Paces = {}
    for sample in samples:
        if sample.tokens > 0 and sample.seconds > 0:
            turns = found.setdefault((sample.suite, sample.prompt), {})
            turns[sample.turn] = sample.seconds / sample.tokens
    return found
