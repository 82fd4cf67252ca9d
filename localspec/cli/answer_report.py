"""Statistics of an answer, as one line or as a table."""

from itertools import zip_longest

from localspec.answer_line import counted, rate, times
from localspec.chat import words
from localspec.chat.figures import Figures
from localspec.cli.answer import AnswerResult
from localspec.decoding.stats import AccountStatement

_NAME_WIDTH = 15


def line(found: AnswerResult) -> str:
    """The summary line (`localspec.answer_line`), with causes and next steps."""
    figures = found.figures
    begin = "interrupted · " if found.completion.finish_reason == "cancelled" else ""
    if not figures.tokens:
        return f"{begin}no answer to a prompt of {counted(figures.prompt_tokens, 'token')} yet"
    end = " · built-in story model, for tests and demos" if found.built_in else ""
    in_full = not found.built_in or words.too_small(figures) is None
    return f"{begin}{words.line(figures, draft=found.draft, in_full=in_full)}{end}"


def table(found: AnswerResult) -> str:
    """All statistics, one per line."""
    stats, finish = found.completion.stats, found.completion.finish_reason
    spans = ("prompt", "draft", "verify", "overhead")
    seconds = (f"{name} {getattr(stats, f'{name}_seconds'):.3f}" for name in spans)
    cached = f" ({stats.cached_tokens} cached)"
    rows = [
        ("model", found.model),
        ("draft model", found.draft or "none"),
        *([("", stats.vocabulary)] if stats.vocabulary else []),
        ("prompt", counted(stats.prompt_tokens, "token") + cached),
        ("generated", f"{counted(stats.generated_tokens, 'token')}, finish: {finish}"),
        ("speed", f"{rate(stats.tokens_per_second)} tok/s after the first token"),
        *_compared(found.figures),
        ("target passes", f"{stats.target_passes}, {stats.tokens_per_pass:.2f} tokens per pass"),
        ("drafted", f"{counted(stats.drafted, 'token')}, of these {stats.tested:,} tested"),
        ("accepted", _share(stats.accepted, stats.tested)),
    ]
    positions = zip_longest(stats.accepted_per_position, stats.tested_per_position, fillvalue=0)
    for number, (accepted, tested) in enumerate(positions, start=1):
        rows.append((f"  position {number}", _share(accepted, tested)))
    for name, drafter in stats.by_drafter.items():
        rows.append((f"  {name}", _share(drafter.accepted, drafter.tested)))
    rows.append(("seconds", ", ".join(seconds)))
    if stats.account is not None:
        rows.append(("balance", account(stats.account)))
    for reason, passes in sorted(stats.reasons.items(), key=lambda item: -item[1]):
        rows.append(("not drafted", f"{counted(passes, 'pass', 'passes')}: {reason}"))
    if stats.threads:
        rows.append(("threads", stats.threads))
    if stats.kernels:
        rows.append(("kernels", stats.kernels))
    rows.append(("rule", f"{stats.rule}, {'lossless' if stats.lossless else 'lossy'}"))
    rows.append(("seed", str(stats.seed)))
    return "\n".join(f"{name:<{_NAME_WIDTH}}{value}" for name, value in rows)


def _compared(figures: Figures) -> list[tuple[str, str]]:
    if figures.plain_seconds is None or figures.speed_up is None:
        return []
    plain = rate((figures.tokens - 1) / figures.plain_seconds)
    return [("speed-up", f"{times(figures.speed_up)} {figures.beside} ({plain} tok/s)")]


def account(statement: AccountStatement) -> str:
    """`drafting saved 1.20 s, and may lose 0.40 s now; 3 steps held back`."""
    word = "saved" if statement.saved >= 0.0 else "lost"
    limit = f"may lose {statement.fund:.2f} s now" if statement.fund > 0.0 else "is paused"
    held = counted(statement.refused, "step")
    return f"drafting {word} {abs(statement.saved):.2f} s, and {limit}; {held} held back"


def _share(part: int, whole: int) -> str:
    return f"{part:,} of {whole:,}" + (f" ({part / whole:.0%})" if whole else "")
