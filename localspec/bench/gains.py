"""What drafts were expected to gain, beside what they gained: in tokens, in time, in both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from localspec.bench.samples import Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """The steps of some answers in which a draft was tried, foreseen and real.

    Attributes:
        steps: how many; `share` of all steps.
        acceptance, real_acceptance: mean predicted chance of the tested tokens, and the share of
            them that was accepted; None where none was tested. Their difference is the bias.
        tokens, real_tokens: per step.
        seconds, real_seconds: per step.
        speed_up: Σ expected tokens × T(1) ÷ Σ expected seconds, with the planner's own T(1).
        real_speed_up: Σ tokens × plain's seconds per token ÷ Σ seconds, with the pace at which the
            plain arm answered the same prompts; None without one.
    """

    steps: int
    share: float | None
    acceptance: float | None
    real_acceptance: float | None
    tokens: float
    real_tokens: float
    seconds: float
    real_seconds: float
    speed_up: float
    real_speed_up: float | None


Paces = dict[tuple[str, str], float]
"""Plain decoding's seconds per token by suite and prompt."""


def gain_of(samples: Sequence[Sample], plain: Paces) -> Gain | None:
    """Of the answers whose drafts somebody expected something of; None where there are none."""
    answers = [s for s in samples if s.foreseen is not None and s.foreseen.steps]
    records = [s.foreseen for s in answers if s.foreseen is not None]
    if not records:
        return None
    steps = sum(r.steps for r in records)
    passes = sum(s.passes or 0 for s in samples)
    tokens, real_tokens = sum(r.tokens for r in records), sum(r.real_tokens for r in records)
    seconds, real_seconds = sum(r.seconds for r in records), sum(r.real_seconds for r in records)
    alone = sum(r.plain_seconds for r in records) / steps
    tested = [prediction for s in answers for prediction in s.predictions]
    known = all((s.suite, s.prompt) in plain for s in answers)
    by_plain = sum(
        r.real_tokens * plain.get((s.suite, s.prompt), 0.0)
        for s, r in zip(answers, records, strict=True)
    )
    return Gain(
        steps=steps,
        share=steps / passes if passes else None,
        acceptance=sum(chance for chance, _ in tested) / len(tested) if tested else None,
        real_acceptance=sum(right for _, right in tested) / len(tested) if tested else None,
        tokens=tokens / steps,
        real_tokens=real_tokens / steps,
        seconds=seconds / steps,
        real_seconds=real_seconds / steps,
        speed_up=tokens * alone / seconds,
        real_speed_up=by_plain / real_seconds if known else None,
    )
