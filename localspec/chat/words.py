"""Figures in words: the line below an answer, and an explanation of its speed."""

from collections.abc import Mapping, Sequence

from localspec.chat.figures import STOCK, Figures
from localspec.drafters.options import TURNED_OFF
from localspec.policy.reasons import RESTING
from localspec.text import counted, rate, times

NAMES = {
    "ngram": "the n-gram drafter",
    "model": "the draft model",
    "cascade": "the cascade",
    "eagle": "the trained head",
    "medusa": "the trained heads",
    "mtp": "the MTP layer",
    "dflash": "the block head",
    "dspark": "the block head",
    "target": "the model itself",
}
"""Names of token sources within a sentence."""
SHORT_PASS = 3e-3
"""Seconds of a pass below which drafts save almost nothing."""
SEE_A_GAIN = "localspec race --scale A"
"""Command that shows a gain on a model of realistic size, without a download."""
_MIN_TOKENS_PER_PASS = 1.1
"""Tokens per pass up to which drafts gained almost nothing."""
WAYS = {"text": "through text", "shared": "on shared tokens"}
"""How a draft model with another vocabulary proposes, by the suffix of its source's name."""


def seconds(value: float) -> str:
    if abs(value) < 0.1:
        return f"{value * 1000:.0f} ms"
    if abs(value) < 100:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(abs(value)), 60)
    return f"{'-' if value < 0 else ''}{minutes} min {rest} s"


def share(part: float, whole: float) -> str:
    return f"{part / whole:.0%}" if whole else "–"


def source_name(source: str) -> str:
    kind, _, way = source.partition(":")
    name = NAMES.get(kind, f"drafter '{kind}'")
    return f"{name} {WAYS.get(way, way)}" if way else name


def line(
    figures: Figures, *, draft: str | None = None, now: bool = False, in_full: bool = False
) -> str:
    """The line below an answer, as `76 tokens · 420 tok/s · 2.6× plain llama.cpp · draft smollm2`.
    `now`: use the current speed, for a running answer; `in_full`: add causes and next steps, if
    there is room."""
    if not figures.tokens:
        return f"{counted(figures.prompt_tokens, 'token')} read" if figures.prompt_tokens else ""
    rest, small = [], too_small(figures)
    if small is not None:
        rest.append(small if in_full else "too small for drafts to help")
    elif not figures.drafted and figures.reasons and figures.passes > 1:
        why = f": {main_reason(figures.reasons)}" if in_full else ""
        rest.append(f"not drafted{why}")
    if not figures.lossless:
        rest.append(f"lossy (rule {figures.rule})")
    parts = [counted(figures.tokens, "token")]
    if speed := figures.speed_now if now else figures.speed:
        parts.append(f"{rate(speed)} tok/s")
    if figures.times_plain is not None:
        parts.append(f"{times(figures.times_plain)} {STOCK}")
    if draft is not None:
        parts.append(f"draft {draft}")
    return " · ".join([*parts, *rest])


def why_undrafted(figures: Figures) -> str | None:
    """A sentence with the reason why nothing is drafted now; None while drafts are made."""
    if figures.off is None:
        return None
    small = too_small(figures)
    return f"No drafts now: {figures.off}." if small is None else f"{small[0].upper()}{small[1:]}."


def too_small(figures: Figures) -> str | None:
    """A sentence if passes are too short for drafts to save time. None also if drafts were accepted
    anyway, or were turned off."""
    passes, reasons = figures.passes, figures.reasons
    if (
        passes < 2
        or not reasons
        or TURNED_OFF in reasons
        or figures.tokens > _MIN_TOKENS_PER_PASS * passes
    ):
        return None
    pass_seconds = figures.verify_seconds / (passes - 1)  # without the prompt's pass
    if not 0.0 < pass_seconds < SHORT_PASS:
        return None
    return (
        f"this model is too small for drafts to help: a pass takes {1000 * pass_seconds:.1f} ms. "
        f"To see them help, type '{SEE_A_GAIN}'"
    )


def main_reason(reasons: Mapping[str, int]) -> str:
    """The most frequent reason, except RESTING, which follows from others."""
    causes = [reason for reason in reasons if reason != RESTING]
    return max(causes or reasons, key=reasons.__getitem__)


def balance(figures: Figures, answers: Sequence[Figures]) -> str:
    """Sentences with the time saved by all answers of a conversation, and the loss limit. An answer
    without a baseline counts as equally fast."""
    if not any(answer.tokens for answer in answers):
        return "No answers yet."
    # Compared with stock llama.cpp, the kernels save time as well.
    who, beside, more = "Drafting", "", f" 'localspec doctor' compares it with {STOCK}."
    if figures.beside == STOCK:
        who, beside, more = "localspec", f", compared with {STOCK}", ""
    saved = sum(answer.saved_seconds or 0.0 for answer in answers)
    done = f"{'saved' if saved >= 0 else 'lost'} {seconds(abs(saved))}"
    if abs(saved) < 0.02 * sum(answer.decode_seconds for answer in answers):
        done = "made no difference"
    return f"{who} {done} in this conversation{beside}{_limit(figures)}.{more}"


def _limit(figures: Figures) -> str:
    return "" if figures.may_risk is None else f"; loss limit {seconds(figures.may_risk)}"


def explain(figures: Figures, *, model: str | None = None, draft: str | None = None) -> str:
    """Explain figures in Markdown paragraphs, for `/why`."""
    if not figures.tokens:
        return "There are no figures yet: this answer has no tokens."
    paragraphs = [_speed(figures, model), _proposals(figures, draft), _undrafted_passes(figures)]
    paragraphs += [_time(figures), _losslessness(figures)]
    return "\n\n".join(text for text in (*paragraphs, *figures.notices) if text)


def _speed(figures: Figures, model: str | None) -> str:
    who = f"**{model}**" if model else "The model"
    tokens = counted(figures.tokens, "token")
    if not figures.decode_seconds:
        return f"{who} wrote {tokens}."
    text = f"{who} wrote {tokens} at {rate(figures.speed)} tokens per second."
    gain, saved = figures.speed_up, figures.saved_seconds
    if gain is None or saved is None:
        return f"{text} The speed without drafts is not measured yet."
    if gain >= 1.02:
        return (
            f"{text} That is **{times(gain)} {figures.beside}**, which would have taken "
            f"{seconds(saved)} longer."
        )
    if gain > 0.97:
        return f"{text} That is as fast as {figures.beside}."
    return (
        f"{text} That is slower than {figures.beside}: **{times(gain)}**, {seconds(-saved)} lost "
        f"to trying drafts and measuring{_limit(figures)}."
    )


def _proposals(figures: Figures, draft: str | None) -> str:
    if not figures.tested:
        return ""
    model = f" ({draft})" if draft else ""
    parts = [
        f"{source_name(name)}{model if name.startswith('model') else ''} guessed "
        f"{counted(tested, 'token')}, {accepted:,} of them correctly ({share(accepted, tested)})"
        for name, (accepted, tested) in figures.by_drafter.items()
        if tested
    ]
    listed = "; ".join(parts) or f"{figures.accepted:,} of {figures.tested:,} guesses were right"
    return (
        f"{listed[0].upper()}{listed[1:]}. Each pass of the model gave "
        f"{figures.tokens_per_pass:.2f} tokens, where it gives 1 without drafts."
    )


def _undrafted_passes(figures: Figures) -> str:
    if not figures.reasons:
        return ""
    steps = sum(figures.reasons.values())
    ordered = sorted(figures.reasons.items(), key=lambda item: -item[1])
    listed = "\n".join(f"- {count:,} ×: {reason}" for reason, count in ordered)
    return f"{steps:,} of {figures.passes:,} passes had no draft:\n\n{listed}"


def _time(figures: Figures) -> str:
    total = figures.decode_seconds
    if not total:
        return ""
    cached = f", {figures.cached_tokens:,} of them cached" if figures.cached_tokens else ""
    return (
        f"The first token came after {seconds(figures.prompt_seconds)} "
        f"({counted(figures.prompt_tokens, 'prompt token')}{cached}). "
        f"The others took {seconds(total)}: {share(figures.verify_seconds, total)} in the model, "
        f"{share(figures.draft_seconds, total)} in the draft model, "
        f"{share(figures.overhead_seconds, total)} in localspec."
    )


def _losslessness(figures: Figures) -> str:
    if not figures.rule:
        return ""
    if figures.lossless:
        return "Drafts do not change the output (lossless)."
    return f"**Rule {figures.rule} is lossy**: it can change the output."
