"""The figures at the end of a race."""

from __future__ import annotations

from collections.abc import Sequence

from localspec.answer_line import rate
from localspec.race.race_outcome import RaceOutcome, pace, speed_up
from localspec.race.turns import NAMES, RaceLane
from localspec.text import printable

MEASURED = 0.05
"""Seconds of calibration that are worth a mention."""


def summary(outcomes: Sequence[RaceOutcome], calibration_seconds: float) -> str:
    """A line for each question, and one for all; calibration is in no lane's time."""
    measured = (
        f" · measured before, once: {calibration_seconds:.1f} s"
        if calibration_seconds >= MEASURED
        else ""
    )
    if len(outcomes) == 1:
        return figures(outcomes[0]) + measured
    lines = [f"{n}: {figures(outcome)}" for n, outcome in enumerate(outcomes, 1)]
    parts = _paces(outcomes)
    gain = speed_up(outcomes)
    if gain is not None:
        parts.append(f"{gain:.2f} times as fast")
    return "\n".join([*lines, f"all: {' · '.join(parts)}{measured}"])


def figures(outcome: RaceOutcome) -> str:
    """`plain (llama.cpp) 5.91 s, 22.1 tok/s · localspec 2.12 s, 61.8 tok/s · 2.79 times as fast`,
    and whether the texts are the same."""
    stats = outcome.localspec.stream.stats
    parts = [_gain(outcome), _sameness(outcome), _proof(outcome)]
    if stats.generated_tokens > 1:
        parts.insert(1, f"{stats.tokens_per_pass:.2f} tokens/pass")
    if not stats.lossless:
        parts.append(f"lossy (rule {stats.rule})")
    start = ["interrupted"] if outcome.interrupted else []
    return " · ".join([*start, *_paces([outcome]), *(text for text in parts if text)])


def texts(outcomes: Sequence[RaceOutcome], further: Sequence[str] = ()) -> str:
    """All answers as plain text, each further question before its own."""
    asked = ["", *(f"\n› {question.strip()}\n\n" for question in further)]
    return "".join(
        question + _texts(outcome) for question, outcome in zip(asked, outcomes, strict=False)
    )


def _texts(outcome: RaceOutcome) -> str:
    """Both answers; only one where they are the same."""
    plain, localspec = (lane.stream.text.strip() for lane in (outcome.plain, outcome.localspec))
    if plain == localspec:
        return f"plain and localspec:\n\n{plain}\n"
    return f"plain:\n\n{plain}\n\nlocalspec:\n\n{localspec}\n"


def _paces(outcomes: Sequence[RaceOutcome]) -> list[str]:
    plain, localspec = NAMES
    if outcomes[0].stock:
        plain += " (llama.cpp)"
    return [
        _pace(plain, [each.plain for each in outcomes]),
        _pace(localspec, [each.localspec for each in outcomes]),
    ]


def _pace(name: str, lanes: Sequence[RaceLane]) -> str:
    tokens, seconds = pace(lanes)
    if not tokens:
        return f"{name} no token yet"
    return f"{name} {seconds:.2f} s, {rate(tokens / seconds if seconds else 0.0)} tok/s"


def _gain(outcome: RaceOutcome) -> str:
    gain, lead = outcome.speed_up, outcome.lead
    if gain is None or lead is None:
        return ""
    if outcome.interrupted or len(outcome.plain.token_ids) != len(outcome.localspec.token_ids):
        return f"{gain:.2f} times the tokens per second"
    return f"{gain:.2f} times as fast, {abs(lead):.2f} s {'sooner' if lead >= 0 else 'later'}"


def _sameness(outcome: RaceOutcome) -> str:
    both = min(len(outcome.plain.token_ids), len(outcome.localspec.token_ids))
    if not both:
        return ""
    if not outcome.alike:
        return "after answers that differed, so the texts may differ"
    if not outcome.greedy:
        if outcome.equal:
            return f"sampled, and yet the same {both} tokens"
        lossless = outcome.localspec.stream.stats.lossless
        return "sampled, so the texts differ" if lossless else "the rule is lossy: texts differ"
    if outcome.parting is None:
        so_far = " so far" if outcome.interrupted else ""
        return f"same text, {both} token{'' if both == 1 else 's'}{so_far}"
    ways = " or ".join(
        f"“{printable(text)}”" if text.strip() else "white space"
        for text in (outcome.parting.plain, outcome.parting.localspec)
    )
    return f"the texts differ after {outcome.parting.position} tokens: {ways}"


def _proof(outcome: RaceOutcome) -> str:
    """For texts that differ: whether localspec's is what it would be without drafts."""
    proof, parted = outcome.proof, not outcome.equal
    if proof is None:
        unexplained = outcome.alike and parted and outcome.greedy
        return "rounding can do that; localspec verify checks it" if unexplained else ""
    if proof.wrong is not None:
        return f"token {proof.wrong + 1} differs from the answer without drafts; please report it"
    return "each token is the same without drafts, bit for bit" if parted else ""
