"""The statistics line below an answer, in `run`, the chat and the server's page; formats."""

from collections.abc import Sequence

STOCK = "plain llama.cpp"
"""Baseline of the speed-up, if stock llama.cpp's plain decoding was measured."""


def answer_line(
    *,
    tokens: int,
    speed: float,
    speed_up: float | None = None,
    draft: str | None = None,
    rest: Sequence[str] = (),
) -> str:
    """`76 tokens · 420 tok/s · 2.6× plain llama.cpp · draft smollm2`.

    Args:
        speed: tokens per second after the first; 0 for a single token.
        speed_up: factor over STOCK; None if not measured.
        rest: further parts.
    """
    parts = [counted(tokens, "token")]
    if speed:
        parts.append(f"{rate(speed)} tok/s")
    if speed_up is not None:
        parts.append(f"{times(speed_up)} {STOCK}")
    if draft is not None:
        parts.append(f"draft {draft}")
    return " · ".join([*parts, *rest])


def counted(number: int, one: str, many: str = "") -> str:
    """A number of things: `1 token`, `2,000 tokens`."""
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"


def rate(value: float) -> str:
    """Format tokens per second, without insignificant digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def times(value: float) -> str:
    """Format a speed-up: `2.6×`; below 2 with one more digit, to show small losses."""
    return f"{value:.1f}×" if value >= 2 else f"{value:.2f}×"
