"""Whether predicted chances of acceptance come true."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

import numpy as np

from localspec.bench.samples import Sample

BINS = 10

PromptKey = tuple[str, str]
"""Suite and prompt id."""


@dataclass(frozen=True, slots=True)
class AcceptanceCalibration:
    """Predicted against observed acceptance.

    Attributes:
        error: expected calibration error: mean over predictions of |predicted − observed| in their
            bin (Naeini et al. 2015; equal counts instead of equal widths, so that none is empty).
        bias: mean prediction − share accepted: above 0 where too much was promised.
        bins: (mean prediction, share accepted, predictions) of each bin, lowest first.
    """

    error: float
    bias: float
    bins: tuple[tuple[float, float, int], ...]


def held_back(samples: Iterable[Sample]) -> set[PromptKey]:
    """The second, fourth … prompt of each suite: those that calibration is judged on."""
    suites: dict[str, dict[str, None]] = {}
    for sample in samples:
        suites.setdefault(sample.suite, {})[sample.prompt] = None
    return {
        (suite, prompt)
        for suite, prompts in suites.items()
        for number, prompt in enumerate(prompts)
        if number % 2
    }


def calibration_of_samples(
    samples: Iterable[Sample], among: Collection[PromptKey]
) -> AcceptanceCalibration | None:
    """Of the predictions on the prompts `among`; None where there are none."""
    return calibration_of_predictions(
        [
            prediction
            for sample in samples
            if (sample.suite, sample.prompt) in among
            for prediction in sample.predictions
        ]
    )


def calibration_of_predictions(
    predictions: Iterable[tuple[float, bool]],
) -> AcceptanceCalibration | None:
    """Of (predicted chance, accepted) pairs."""
    table = np.array(list(predictions), dtype=np.float64).reshape(-1, 2)
    if not len(table):
        return None
    table = table[np.argsort(table[:, 0], kind="stable")]
    bins = [part for part in np.array_split(table, BINS) if len(part)]
    means = [part.mean(axis=0) for part in bins]
    gaps = [len(part) * abs(mean[0] - mean[1]) for part, mean in zip(bins, means, strict=True)]
    return AcceptanceCalibration(
        float(sum(gaps) / len(table)),
        float((table[:, 0] - table[:, 1]).mean()),
        tuple(
            (float(mean[0]), float(mean[1]), len(part))
            for part, mean in zip(bins, means, strict=True)
        ),
    )
