from __future__ import annotations

import statistics
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from time import perf_counter

from localspec.llama.context import Context
from localspec.llama.model import Model
from localspec.llama.options import ModelOptions

ROUNDS, LEAST = 15, 5
SECONDS = 4.0
"""Large models and busy machines get fewer rounds, at least LEAST."""


def time_ratio(model: Model, path: Path, options: ModelOptions) -> float:
    """Seconds of a single-token pass: another file's, with these options, ÷ the model's. The median
    of ratios within rounds of alternating order, so that changes of pace cancel out."""
    # On the model's device, too: the two differ in their weights alone.
    options = replace(options, context=64)
    with Model(path, options) as other, ExitStack() as opened:
        contexts = [opened.enter_context(closing(Context(one, options))) for one in (model, other)]
        ratios: list[float] = []
        deadline = perf_counter() + SECONDS
        for turn in range(ROUNDS + 2):
            if len(ratios) >= LEAST and perf_counter() > deadline:
                break
            seconds = [0.0, 0.0]
            for which in (0, 1) if turn % 2 else (1, 0):
                context = contexts[which]
                context.clear()
                context.extend([1], 1)  # the other model has just used the caches
                before = context.native_seconds
                for _ in range(3):
                    context.extend([1], 1)
                seconds[which] = context.native_seconds - before
            if turn >= 2:
                ratios.append(seconds[1] / seconds[0])
        return statistics.median(ratios)
