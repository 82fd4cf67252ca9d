import statistics
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from time import perf_counter

from localspec.llama.context import Context
from localspec.llama.model import Model, Progress
from localspec.llama.options import ModelOptions

ROUNDS, MIN_ROUNDS = 15, 5
TIME_LIMIT = 4.0
"""Seconds after which no round beyond MIN_ROUNDS begins."""


def time_ratio(
    model: Model, path: Path, options: ModelOptions, progress: Progress | None = None
) -> float:
    """The time of a single-token pass of another file, with these options, ÷ the model's: the
    median over rounds of alternating order, so that changes of speed cancel out. `progress` may
    raise to stop."""
    # Both run on the same device and differ only in their weights.
    options = replace(options, context=64)
    with Model(path, options) as other, ExitStack() as opened:
        contexts = [opened.enter_context(closing(Context.open(m, options))) for m in (model, other)]
        ratios: list[float] = []
        deadline = perf_counter() + TIME_LIMIT
        for turn in range(ROUNDS + 2):
            if len(ratios) >= MIN_ROUNDS and perf_counter() > deadline:
                break
            if progress is not None:
                progress(1.0)
            seconds = [0.0, 0.0]
            for which in (0, 1) if turn % 2 else (1, 0):
                context = contexts[which]
                context.clear()
                context.extend([1], 1)  # the other model has just used the CPU caches
                before = context.native_seconds
                for _ in range(3):
                    context.extend([1], 1)
                seconds[which] = context.native_seconds - before
            if turn >= 2:
                ratios.append(seconds[1] / seconds[0])
        return statistics.median(ratios)
