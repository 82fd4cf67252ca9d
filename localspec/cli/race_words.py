"""The line of figures that a race ends in."""

from __future__ import annotations

from collections.abc import Sequence

from localspec.chat import words
from localspec.race.outcome import Parting, RaceOutcome, both, speed_up
from localspec.race.turns import NAMES
from localspec.text import printable


def summary(outcomes: Sequence[RaceOutcome], calibration_seconds: float) -> str:
    """The line of figures; where there were several questions one for each, and one of all.

    Args:
        calibration_seconds: measured before, and in no lane's time.
    """
    if len(outcomes) == 1:
        return figures(outcomes[0], calibration_seconds)
    lines = [f"{n}: {figures(outcome, 0.0)}" for n, outcome in enumerate(outcomes, 1)]
    parts = [
        _pace(name, sum(len(lane.token_ids) for lane in lanes), sum(lane.seconds for lane in lanes))
        for name, lanes in zip(_names(outcomes[0]), both(outcomes), strict=True)
    ]
    gain = speed_up(outcomes)
    if gain is not None:
        parts.append(f"{gain:.2f} times as fast")
    if calibration_seconds >= 0.05:
        parts.append(f"measured before, once: {words.seconds(calibration_seconds)}")
    return "\n".join([*lines, f"all: {' · '.join(parts)}"])


def figures(outcome: RaceOutcome, calibration_seconds: float) -> str:
    """One line: `plain (llama.cpp) 5.91 s, 22.1 tok/s · localspec 2.12 s, 61.8 tok/s · 2.79 times
    as fast …`.

    Args:
        calibration_seconds: measured before, and in no lane's time.
    """
    parts = ["interrupted"] if outcome.interrupted else []
    lanes = zip(_names(outcome), (outcome.plain, outcome.localspec), strict=True)
    parts += [_pace(name, len(lane.token_ids), lane.seconds) for name, lane in lanes]
    told = _gain(outcome), _passes(outcome), _sameness(outcome), _proof(outcome)
    parts += [text for text in told if text]
    if not outcome.localspec.stats.lossless:
        parts.append(f"lossy (rule {outcome.localspec.stats.rule})")
    stats = outcome.localspec.stats
    small = words.too_small(
        stats.generated_tokens, stats.target_passes, stats.verify_seconds, stats.reasons
    )
    if small:
        parts.append(small)
    if calibration_seconds >= 0.05:
        parts.append(f"measured before, once: {words.seconds(calibration_seconds)}")
    return " · ".join(parts)


def texts(outcomes: Sequence[RaceOutcome], further: Sequence[str] = ()) -> str:
    """All answers as plain text, each further question before its own."""
    asked = ["", *(f"\n› {question.strip()}\n\n" for question in further)]
    return "".join(
        question + _texts(outcome) for question, outcome in zip(asked, outcomes, strict=False)
    )


def _texts(outcome: RaceOutcome) -> str:
    """Both answers; one of them where they are the same."""
    plain, localspec = outcome.plain.text, outcome.localspec.text
    if plain == localspec:
        return f"plain and localspec:\n\n{plain.strip()}\n"
    return f"plain:\n\n{plain.strip()}\n\nlocalspec:\n\n{localspec.strip()}\n"


def _names(outcome: RaceOutcome) -> tuple[str, str]:
    """Of the lanes; what plain decoding is, where it is not localspec's own."""
    plain, localspec = NAMES
    return f"{plain} (llama.cpp)" if outcome.stock else plain, localspec


def _pace(name: str, tokens: int, seconds: float) -> str:
    if not tokens:
        return f"{name} no token yet"
    return f"{name} {seconds:.2f} s, {tokens / seconds if seconds else 0.0:.3g} tok/s"


def _gain(outcome: RaceOutcome) -> str | None:
    gain, lead = outcome.speed_up, outcome.lead
    if gain is None or lead is None:
        return None
    if outcome.interrupted or len(outcome.plain.token_ids) != len(outcome.localspec.token_ids):
        return f"{gain:.2f} times the tokens per second"
    return f"{gain:.2f} times as fast, {abs(lead):.2f} s {'sooner' if lead >= 0 else 'later'}"


def _passes(outcome: RaceOutcome) -> str | None:
    stats = outcome.localspec.stats
    return f"{stats.tokens_per_pass:.2f} tokens/pass" if stats.generated_tokens > 1 else None


def _sameness(outcome: RaceOutcome) -> str | None:
    both = min(len(outcome.plain.token_ids), len(outcome.localspec.token_ids))
    if not both:
        return None
    if not outcome.alike:
        return "after answers that differed, so the texts may differ"
    if not outcome.greedy:
        if outcome.equal:
            return f"sampled, and yet the same {both} tokens"
        return (
            "the rule is lossy, so the texts differ"
            if (not outcome.localspec.stats.lossless)
            else "sampled, so the texts differ"
        )
    if outcome.parting is not None:
        return _parting(outcome.parting)
    return f"same text, {both} token{'' if both == 1 else 's'}" + (
        " so far" if outcome.interrupted else ""
    )


def _proof(outcome: RaceOutcome) -> str | None:
    """What texts that are the same need not be told."""
    proof = outcome.proof
    if proof is None or (proof.wrong is None and outcome.equal):
        return None
    if proof.wrong is None:
        return "each token is plain decoding's, bit for bit"
    return f"token {proof.wrong + 1} differs from the answer without drafts; please report it"


def _parting(parting: Parting) -> str:
    where = f"the texts part after {parting.position} tokens"
    ways = " or ".join(
        f"“{printable(text)}”" if text.strip() else "white space"
        for text in (parting.plain, parting.localspec)
    )
    if parting.gap is None:
        return f"{where}: {ways}"
    apart = f"{abs(parting.gap):.2g} logits apart"
    if parting.rounding is not None:
        apart += f", and rounding moves logits by up to {parting.rounding:.2g} there"
    if parting.near_tie:
        return f"{where}, at a near tie: {ways}, {apart}"
    return f"{where}, and not at a near tie: {ways}, {apart}; please report it"
