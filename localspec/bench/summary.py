"""From samples to figures: pure functions, no clock, no model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from localspec.bench.arms import PLAIN, sweep_depth
from localspec.bench.calibration_error import (
    AcceptanceCalibration,
    calibration_of_samples,
    held_back,
)
from localspec.bench.equality import Equality, equalities
from localspec.bench.gains import Gain, Paces, gain_of
from localspec.bench.intervals import mean_interval
from localspec.bench.oracle import expected_tokens
from localspec.bench.samples import DraftAccount, Sample
from localspec.bench.speed_ups import geometric_mean, log_ratios

ALL = "(all)"
"""The suite of figures over all suites: totals, and geometric means of the speed-ups."""

_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One arm on one suite (or ALL) at one temperature. None stands for what is not known.

    Attributes:
        prompts: how many it answered.
        tokens, seconds: per turn; `seconds` from the median over turns of each prompt.
        compared: prompts that the baseline answered as well.
        speed_up: against the baseline: geometric mean over those prompts of how many times faster
            each was answered, paired by turn; for ALL, of the suites' means.
        interval: of the speed-up, 95 %, see `localspec.bench.intervals`; None with too few prompts,
            and of the baseline itself.
        acceptance: accepted ÷ tested.
        kept: accepted ÷ drafted, for comparison with peers that tell no more.
        tokens_per_pass: tokens ÷ target passes.
        expected_per_pass: what the planner expected of the same passes.
        draft_share, verify_share, overhead_share: of the seconds.
        calibration_error: of the predicted chances, on the held-back prompts.
        calibration_seconds: per answer, before it.
        gain: of the drafts, foreseen and real.
        account: what drafting saved and risked, summed over the answers.
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
    expected_per_pass: float | None = None
    draft_share: float | None = None
    verify_share: float | None = None
    overhead_share: float | None = None
    calibration_error: float | None = None
    calibration_seconds: float | None = None
    gain: Gain | None = None
    account: DraftAccount | None = None
    compared: int = 0


@dataclass(frozen=True, slots=True)
class SweepRow:
    """One fixed depth: theory (Leviathan et al. 2023, eq. 1, at its acceptance) and measurement."""

    depth: int
    temperature: float
    acceptance: float
    expected_per_pass: float
    tokens_per_pass: float
    tokens_per_second: float
    speed_up: float | None


@dataclass(frozen=True, slots=True)
class PairSummary:
    """All figures of one pair."""

    baseline: str
    cells: tuple[Cell, ...]
    sweep: tuple[SweepRow, ...]
    equality: tuple[Equality, ...]
    calibrations: dict[str, AcceptanceCalibration]

    @property
    def arms(self) -> list[str]:
        """Names, in the order in which they first ran."""
        return distinct(cell.arm for cell in self.cells)

    @property
    def suites(self) -> list[str]:
        return distinct(cell.suite for cell in self.cells if cell.suite != ALL)

    @property
    def temperatures(self) -> list[float]:
        return distinct(cell.temperature for cell in self.cells)

    def cell(self, arm: str, suite: str, temperature: float) -> Cell | None:
        """The figures of one place in a table, None where nothing ran."""
        wanted = (arm, suite, temperature)
        found = (c for c in self.cells if (c.arm, c.suite, c.temperature) == wanted)
        return next(found, None)


def summarise(samples: Sequence[Sample], *, baseline: str = PLAIN) -> PairSummary:
    """Work out all figures.

    Args:
        baseline: the arm that speed-ups are against; without samples of it there are none.
    """
    arms = distinct(s.arm for s in samples)
    suites = distinct(s.suite for s in samples)
    held = held_back(samples)
    cells: list[Cell] = []
    for temperature in distinct(s.temperature for s in samples):
        here = [s for s in samples if s.temperature == temperature]
        base = {suite: _of(here, baseline, suite) for suite in suites}
        paces = {
            prompt: seconds / tokens
            for found in base.values()
            for prompt, (tokens, seconds) in _prompts(found).items()
        }
        # The baseline is known first: the order of the arms changes from suite to suite.
        for arm in arms:
            found: list[Cell] = []
            ratios: list[NDArray[np.float64]] = []
            for suite in suites:
                mine = _of(here, arm, suite)
                if not mine:
                    continue
                logs = log_ratios(mine, base[suite])
                if len(logs):
                    ratios.append(logs)
                found.append(_cell(mine, suite, [logs] if len(logs) else [], held, paces))
            if found:
                everything = [s for s in here if s.arm == arm]
                cells += found
                cells.append(_cell(everything, ALL, ratios, held, paces))
    calibrations = {
        arm: calibration
        for arm in arms
        if (calibration := calibration_of_samples([s for s in samples if s.arm == arm], held))
        is not None
    }
    return PairSummary(
        baseline, tuple(cells), _sweep(cells), tuple(equalities(samples)), calibrations
    )


def distinct(items: Iterable[_Item]) -> list[_Item]:
    """Each once, in the order of first appearance."""
    return list(dict.fromkeys(items))


def _of(samples: Iterable[Sample], arm: str, suite: str) -> list[Sample]:
    return [s for s in samples if s.arm == arm and s.suite == suite]


def _prompts(samples: Iterable[Sample]) -> dict[tuple[str, str], tuple[float, float]]:
    """Tokens and seconds of each prompt: the median pace over turns times the mean tokens.

    The same as the median of the seconds where all turns gave equally long answers. An answer that
    ended with its first token has no pace.
    """
    turns: dict[tuple[str, str], list[Sample]] = {}
    for sample in samples:
        if sample.tokens > 0 and sample.seconds > 0:
            turns.setdefault((sample.suite, sample.prompt), []).append(sample)
    found = {}
    for prompt, repeated in turns.items():
        tokens = float(np.mean([s.tokens for s in repeated]))
        pace = float(np.median([s.seconds / s.tokens for s in repeated]))
        found[prompt] = (tokens, tokens * pace)
    return found


def _cell(
    samples: Sequence[Sample],
    suite: str,
    ratios: Sequence[NDArray[np.float64]],
    held: set[tuple[str, str]],
    paces: Paces,
) -> Cell:
    prompts = _prompts(samples)
    tokens = sum(tokens for tokens, _ in prompts.values())
    seconds = sum(seconds for _, seconds in prompts.values())
    total = sum(s.seconds for s in samples)
    calibration = calibration_of_samples(samples, held)
    drafted = [s for s in samples if s.tested is not None]
    passed = [s for s in samples if s.passes is not None]
    foreseen = [s for s in passed if s.expected_tokens is not None]
    return Cell(
        arm=samples[0].arm,
        suite=suite,
        temperature=samples[0].temperature,
        prompts=len(prompts),
        tokens=tokens,
        seconds=seconds,
        tokens_per_second=tokens / seconds if seconds else 0.0,
        compared=sum(map(len, ratios)),
        speed_up=geometric_mean(np.exp(logs.mean()) for logs in ratios) if ratios else None,
        interval=mean_interval(ratios) if ratios else None,
        acceptance=_share(drafted, "accepted", "tested"),
        kept=_share([s for s in samples if s.drafted is not None], "accepted", "drafted"),
        tokens_per_pass=_share(passed, "tokens", "passes"),
        expected_per_pass=_share(foreseen, "expected_tokens", "passes"),
        draft_share=_time_share(samples, "draft_seconds", total),
        verify_share=_time_share(samples, "verify_seconds", total),
        overhead_share=_time_share(samples, "overhead_seconds", total),
        calibration_error=None if calibration is None else calibration.error,
        calibration_seconds=_mean([s.calibration_seconds for s in samples]),
        gain=gain_of(samples, paces),
        account=_account(samples),
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _account(samples: Sequence[Sample]) -> DraftAccount | None:
    known = [s.account for s in samples if s.account is not None]
    if not known:
        return None
    return DraftAccount(sum(a.saved for a in known), sum(a.risked for a in known))


def _share(samples: Sequence[Sample], part: str, whole: str) -> float | None:
    total = sum(getattr(s, whole) for s in samples)
    return sum(getattr(s, part) or 0 for s in samples) / total if total else None


def _time_share(samples: Sequence[Sample], part: str, total: float) -> float | None:
    values = [getattr(s, part) for s in samples]
    return None if None in values or not total else sum(values) / total


def _sweep(cells: Iterable[Cell]) -> tuple[SweepRow, ...]:
    rows = []
    for cell in cells:
        depth = sweep_depth(cell.arm)
        if depth is None or cell.suite != ALL:
            continue
        if cell.acceptance is None or cell.tokens_per_pass is None:
            continue
        rows.append(
            SweepRow(
                depth,
                cell.temperature,
                cell.acceptance,
                expected_tokens(cell.acceptance, depth),
                cell.tokens_per_pass,
                cell.tokens_per_second,
                cell.speed_up,
            )
        )
    return tuple(rows)
