"""Compute figures from samples."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, geometric_mean, median
from typing import TypeVar

import numpy as np

from localspec.bench.arms import PLAIN
from localspec.bench.samples import Sample
from localspec.bench.speed_ups import by_prompt, log_ratios, mean_interval
from localspec.llama.target import shared_prefix

ALL = "(all)"
"""All suites together: totals, and geometric means of the speed-ups."""

_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One arm on one suite (or ALL) at one temperature; None where unknown.

    Attributes:
        tokens, seconds: per turn, at each prompt's median pace over turns.
        speed_up: against plain decoding: geometric mean over common prompts; for ALL, of the
            suites' means.
        interval: of the speed-up (`localspec.bench.speed_ups`).
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
    """Greedy answers of an arm compared with plain decoding. `equal`, `total`: answers with equal
    tokens, and all; `divergences`: (suite, prompt, first different position) of the others."""

    arm: str
    equal: int
    total: int
    divergences: tuple[tuple[str, str, int], ...]


@dataclass(frozen=True, slots=True)
class PairSummary:
    cells: tuple[Cell, ...]
    equality: tuple[Equality, ...]

    @property
    def arms(self) -> list[str]:
        """Arms in the order of their first answers."""
        return distinct(cell.arm for cell in self.cells)

    @property
    def suites(self) -> list[str]:
        return distinct(cell.suite for cell in self.cells if cell.suite != ALL)

    @property
    def temperatures(self) -> list[float]:
        return distinct(cell.temperature for cell in self.cells)

    def cell(self, arm: str, suite: str, temperature: float) -> Cell | None:
        wanted = (arm, suite, temperature)
        found = (c for c in self.cells if (c.arm, c.suite, c.temperature) == wanted)
        return next(found, None)


def summarise(samples: Sequence[Sample]) -> PairSummary:
    """All figures; speed-ups against plain decoding, if it was measured."""
    cells = []
    for temperature in distinct(s.temperature for s in samples):
        here = [s for s in samples if s.temperature == temperature]
        base = [s for s in here if s.arm == PLAIN]
        for arm in distinct(s.arm for s in here):
            mine = [s for s in here if s.arm == arm]
            ratios = log_ratios(mine, base)
            for suite in distinct(s.suite for s in mine):
                logs = [ratios[suite]] if suite in ratios else []
                cells.append(_cell([s for s in mine if s.suite == suite], suite, logs))
            cells.append(_cell(mine, ALL, [*ratios.values()]))
    return PairSummary(tuple(cells), tuple(equalities(samples)))


def equalities(samples: Iterable[Sample]) -> list[Equality]:
    """Compare the greedy answers of each arm with plain decoding."""
    greedy = [s for s in samples if s.temperature == 0 and s.token_ids]
    plain: dict[tuple[str, str], tuple[int, ...]] = {}
    for sample in greedy:
        if sample.arm == PLAIN:
            plain.setdefault((sample.suite, sample.prompt), sample.token_ids)
    found = []
    for arm in distinct(s.arm for s in greedy if s.arm != PLAIN):
        compared = [s for s in greedy if s.arm == arm and (s.suite, s.prompt) in plain]
        others = [
            (s.suite, s.prompt, shared_prefix(s.token_ids, plain[s.suite, s.prompt]))
            for s in compared
            if s.token_ids != plain[s.suite, s.prompt]
        ]
        if compared:
            equal = len(compared) - len(others)
            found.append(Equality(arm, equal, len(compared), tuple(distinct(others))))
    return found


def distinct(items: Iterable[_Item]) -> list[_Item]:
    """Distinct items in the order of first appearance."""
    return list(dict.fromkeys(items))


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
