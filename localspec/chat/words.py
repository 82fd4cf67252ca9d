"""Figures in words: numbers as they are shown, the line below an answer, and why it went so."""

from __future__ import annotations

from collections.abc import Mapping

from localspec.answer_line import STOCK, answer_line
from localspec.answer_line import rate as rate
from localspec.chat.figures import Figures
from localspec.drafters.options import TURNED_OFF
from localspec.policy.reasons import RESTING

NAMES = {
    "ngram": "the n-gram index",
    "model": "the draft model",
    "cascade": "the cascade",
    "eagle": "the trained head",
    "medusa": "the trained heads",
    "mtp": "the MTP layer",
    "dflash": "the block head",
    "dspark": "the block head",
    "target": "the model itself",
}
"""What the sources of tokens are called in a sentence."""
SHORT_PASS = 3e-3
"""Seconds of a pass below which the planner's own work shows, and drafts save next to nothing."""
SEE_A_GAIN = "localspec race --scale A"
"""What to type for that: a model of realistic size, for which nothing has to be downloaded."""
_HARDLY = 1.1
"""Tokens per pass up to which drafts have brought next to nothing."""
WAYS = {"text": "through text", "shared": "on shared tokens"}
"""How a draft model of another vocabulary proposes: what its sources say behind a colon."""


def seconds(value: float) -> str:
    """A time as one would say it."""
    if abs(value) < 0.1:
        return f"{value * 1000:.0f} ms"
    if abs(value) < 100:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(abs(value)), 60)
    return f"{'-' if value < 0 else ''}{minutes} min {rest} s"


def share(part: float, whole: float) -> str:
    """A share in percent."""
    return f"{100 * part / whole:.0f} %" if whole else "–"


def size(count: float) -> str:
    """Bytes, in the unit that fits."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def named(source: str) -> str:
    """A source in a sentence."""
    kind, _, way = source.partition(":")
    name = NAMES.get(kind, f"drafter '{kind}'")
    return f"{name} {WAYS.get(way, way)}" if way else name


def line(figures: Figures, *, draft: str | None = None, now: bool = False) -> str:
    """An answer in one line: `76 tokens · 420 tok/s · 2.6× plain llama.cpp · draft smollm2`.

    Args:
        draft: name of the draft model.
        now: show the speed of the last moments, for an answer that still comes.
    """
    if not figures.tokens:
        return f"{figures.prompt_tokens:,} tokens read" if figures.prompt_tokens else ""
    rest = []
    if not figures.drafted and figures.reasons and figures.passes > 1:
        rest.append("not drafted" if _too_small(figures) is None else "too small to gain")
    if not figures.lossless:
        rest.append(f"lossy (rule {figures.rule})")
    return answer_line(
        tokens=figures.tokens,
        speed=figures.speed_now if now else figures.speed,
        speed_up=figures.speed_up if figures.drafted or figures.beside == STOCK else None,
        beside=figures.beside,
        draft=draft,
        rest=rest,
    )


def off(figures: Figures) -> str | None:
    """Why drafting is off at present, as a sentence; None while it is on."""
    if figures.off is None:
        return None
    small = _too_small(figures)
    return (
        f"Drafting is off: {figures.off}." if small is None else f"{small[0].upper()}{small[1:]}."
    )


def too_small(
    tokens: int, passes: int, verify_seconds: float, reasons: Mapping[str, int]
) -> str | None:
    """That a model's passes are too short for drafts to save anything, and what to type to see them
    do; None where they are not, or drafts were accepted all the same, or nobody wanted any.

    Args:
        tokens, passes: of the answer, the prompt's own pass counted.
        verify_seconds: of the passes after that one.
        reasons: why steps were not drafted, and how many.
    """
    if passes < 2 or not reasons or TURNED_OFF in reasons or tokens > _HARDLY * passes:
        return None
    each = verify_seconds / (passes - 1)
    if not 0.0 < each < SHORT_PASS:
        return None
    return (
        f"this model is too small to gain: a pass takes only {1000 * each:.1f} ms. To see a gain, "
        f"type: {SEE_A_GAIN}"
    )


def main_reason(reasons: Mapping[str, int]) -> str:
    """Of why steps were not drafted, what tells most: the most frequent one. That planning rests is
    only a consequence of the others.

    Args:
        reasons: with how many steps each; one at least.
    """
    causes = {reason: steps for reason, steps in reasons.items() if reason != RESTING}
    causes = causes or dict(reasons)
    return max(causes, key=causes.__getitem__)


def _too_small(figures: Figures) -> str | None:
    return too_small(figures.tokens, figures.passes, figures.verify_seconds, figures.reasons)


def explain(figures: Figures, *, model: str | None = None, draft: str | None = None) -> str:
    """An answer's figures as Markdown paragraphs, for `/why`."""
    if not figures.tokens:
        return "There are no figures yet: this answer has no tokens."
    told = [_speed(figures, model), _proposals(figures, draft), _pauses(figures)]
    told.append(_account(figures))
    told += [_time(figures), _prompt(figures), _promise(figures)]
    return "\n\n".join(text for text in (*told, *figures.notices) if text)


def _speed(figures: Figures, model: str | None) -> str:
    who = f"**{model}**" if model else "The model"
    tokens = f"{figures.tokens:,} token{'' if figures.tokens == 1 else 's'}"
    if not figures.decode_seconds:
        return f"{who} gave {tokens}."
    text = (
        f"{who} gave {tokens} in {figures.passes:,} passes, "
        f"{figures.tokens_per_pass:.2f} tokens per pass, at {rate(figures.speed)} tokens per "
        "second."
    )
    gain = figures.speed_up
    if gain is None or figures.saved_seconds is None:
        return (
            f"{text} What plain decoding costs here was not measured, so there is nothing to "
            "compare with."
        )
    if gain >= 1.02:
        return (
            f"{text} That is **{gain:.2f} times** as fast as plain decoding, which would have "
            f"taken {seconds(figures.saved_seconds)} longer."
        )
    if gain > 0.97:
        return f"{text} Plain decoding would have been as fast ({gain:.2f}×)."
    return (
        f"{text} Plain decoding would have been faster: this was {gain:.2f} times its speed and "
        f"lost {seconds(-figures.saved_seconds)}, with trying drafts and localspec's own work."
    )


def _proposals(figures: Figures, draft: str | None) -> str:
    if not figures.drafted:
        return ""
    text = (
        f"Of {figures.drafted:,} tokens proposed, {figures.tested:,} were tested and "
        f"{figures.accepted:,} accepted ({share(figures.accepted, figures.tested)}); the rest came "
        "after a rejected one."
    )
    parts = [
        f"{named(name)}{f' ({draft})' if name.startswith('model') and draft else ''} was right in "
        f"{accepted:,} of {tested:,} ({share(accepted, tested)})"
        for name, (accepted, tested) in figures.by_drafter.items()
        if tested
    ]
    if parts:
        listed = ", ".join(parts)
        text += f" {listed[0].upper()}{listed[1:]}."
    positions = [(a, t) for a, t in figures.by_position if t >= 5]
    if len(positions) > 1:
        first, last = positions[0], positions[-1]
        text += (
            f" The first token of a draft was accepted in {share(*first)}, the "
            f"{_ordinal(len(positions))} in {share(*last)}."
        )
    return text


def _pauses(figures: Figures) -> str:
    if not figures.reasons:
        return ""
    steps = sum(figures.reasons.values())
    ordered = sorted(figures.reasons.items(), key=lambda item: -item[1])
    listed = "\n".join(f"- {count:,} ×: {reason}" for reason, count in ordered)
    return f"{steps:,} of {figures.passes:,} passes had no draft:\n\n{listed}"


def _account(figures: Figures) -> str:
    if figures.pair_saved is None or figures.may_risk is None:
        return ""
    word = "saved" if figures.pair_saved >= 0 else "lost"
    text = (
        f"With this pair, drafting has {word} {seconds(abs(figures.pair_saved))} so far, and may "
        f"lose at most {seconds(figures.may_risk)} now."
    )
    if not figures.held_back:
        return text
    passes = "pass was" if figures.held_back == 1 else "passes were"
    return (
        f"{text} {figures.held_back:,} {passes} not drafted because more than that was at risk: "
        "what drafts may lose, they have to save first, so that no answer is slower than plain "
        "decoding by more."
    )


def _time(figures: Figures) -> str:
    total = figures.decode_seconds
    if not total:
        return ""
    return (
        f"Of {seconds(total)} of decoding, {share(figures.verify_seconds, total)} went to the "
        f"model's passes, {share(figures.draft_seconds, total)} to the draft model's, and "
        f"{share(figures.overhead_seconds, total)} to localspec itself."
    )


def _prompt(figures: Figures) -> str:
    text = f"The prompt has {figures.prompt_tokens:,} tokens"
    if figures.cached_tokens:
        text += f"; {figures.cached_tokens:,} were still in the cache"
    return f"{text}. The first token came after {seconds(figures.prompt_seconds)}."


def _promise(figures: Figures) -> str:
    if not figures.rule:
        return ""
    if figures.lossless:
        return f"Nothing of this changes the output (rule {figures.rule}, lossless)."
    return f"**Rule {figures.rule} is lossy**: it can change the output."


def _ordinal(number: int) -> str:
    return {1: "first", 2: "second", 3: "third"}.get(number, f"{number}th")
