"""The figures of a generation in words: one line, or a table."""

from __future__ import annotations

from localspec.chat import words
from localspec.decoding.stats import AccountStatement, GenerationStats

_RANK_WIDTH = 15


def figures(stats: GenerationStats, *, draft: str | None, interrupted: bool) -> str:
    """One line: `139 tokens · 812 tok/s · 2.53 tokens/pass · accepted 128 of 185 (69 %) · …`.

    Args:
        draft: name of the draft model, None without one.
        interrupted: whether the user stopped the answer.
    """
    parts = ["interrupted"] if interrupted else []
    if stats.generated_tokens == 0:
        prompt = _count(stats.prompt_tokens, "token")
        return " · ".join([*parts, f"no answer to a prompt of {prompt} yet"])
    parts.append(_count(stats.generated_tokens, "token"))
    small = words.too_small(
        stats.generated_tokens, stats.target_passes, stats.verify_seconds, stats.reasons
    )
    plainly = small is None and not stats.drafted and bool(stats.reasons)
    if stats.generated_tokens > 1:
        parts.append(f"{_rate(stats.tokens_per_second)} tok/s")
        if small is None and not plainly:
            parts.append(f"{stats.tokens_per_pass:.2f} tokens/pass")
    if small is not None:
        parts.append(small)
    elif stats.drafted:
        parts.append(f"accepted {_share(stats.accepted, stats.tested)}")
        parts += [f"{name} {d.accepted}/{d.tested}" for name, d in stats.by_drafter.items()]
    elif plainly:
        parts.append(f"decoded plainly: {words.main_reason(stats.reasons)}")
    if draft is not None:
        parts.append(f"draft {draft}")
    if not stats.lossless:
        parts.append(f"lossy (rule {stats.rule})")
    return " · ".join(parts)


def table(stats: GenerationStats, *, model: str, draft: str | None, finish: str) -> str:
    """Everything that `stats` has, a line per figure."""
    seconds = {
        "prompt": stats.prompt_seconds,
        "draft": stats.draft_seconds,
        "verify": stats.verify_seconds,
        "overhead": stats.overhead_seconds,
    }
    cached = f" ({stats.cached_tokens} cached)"
    rows = [
        ("model", model),
        ("draft model", draft or "none"),
        *([("", stats.vocabulary)] if stats.vocabulary else []),
        ("prompt", _count(stats.prompt_tokens, "token") + cached),
        ("generated", f"{_count(stats.generated_tokens, 'token')}, finish: {finish}"),
        ("speed", f"{_rate(stats.tokens_per_second)} tok/s after the first token"),
        ("target passes", f"{stats.target_passes}, {stats.tokens_per_pass:.2f} tokens per pass"),
        ("drafted", f"{_count(stats.drafted, 'token')}, of these {stats.tested} tested"),
        ("accepted", _share(stats.accepted, stats.tested)),
    ]
    positions = zip(_padded(stats), stats.tested_per_position, strict=True)
    for number, (accepted, tested) in enumerate(positions, start=1):
        rows.append((f"  position {number}", _share(accepted, tested)))
    for name, drafter in stats.by_drafter.items():
        rows.append((f"  {name}", _share(drafter.accepted, drafter.tested)))
    rows.append(("seconds", ", ".join(f"{name} {value:.3f}" for name, value in seconds.items())))
    if stats.account is not None:
        rows.append(("account", account(stats.account)))
    for reason, passes in sorted(stats.reasons.items(), key=lambda item: -item[1]):
        rows.append(("not drafted", f"{_count(passes, 'pass', 'passes')}: {reason}"))
    if stats.threads:
        rows.append(("threads", stats.threads))
    if stats.kernels:
        rows.append(("kernels", stats.kernels))
    rows.append(("rule", f"{stats.rule}, {'lossless' if stats.lossless else 'lossy'}"))
    rows.append(("seed", str(stats.seed)))
    return "\n".join(f"{name:<{_RANK_WIDTH}}{value}" for name, value in rows)


def account(statement: AccountStatement) -> str:
    """`saved 1.20 s, may still risk 0.40 s; 3 steps held back`."""
    word = "saved" if statement.saved >= 0.0 else "lost"
    held = _count(statement.refused, "step")
    return (
        f"{word} {abs(statement.saved):.2f} s, may still risk {max(0.0, statement.fund):.2f} s; "
        f"{held} held back"
    )


def _padded(stats: GenerationStats) -> list[int]:
    """Accepted per position, with a zero for each position where nothing was."""
    missing = len(stats.tested_per_position) - len(stats.accepted_per_position)
    return [*stats.accepted_per_position, *[0] * missing]


def _count(number: int, one: str, many: str | None = None) -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


def _rate(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def _share(part: int, whole: int) -> str:
    return f"{part} of {whole}" + (f" ({100 * part / whole:.0f} %)" if whole else "")
