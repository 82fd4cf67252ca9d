"""An arm of `tools.passes`: has a model open, and measures what stdin asks for."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

from localspec import ModelOptions
from localspec.llama import kernels
from localspec.llama.context import Context
from localspec.llama.model import Model

EACH = 3
"""Passes of a turn that are counted; one goes before them."""


def main() -> None:
    path, room, threads = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    options = ModelOptions(context=room, threads=threads, gpu_layers=0)
    began = perf_counter()
    with Model(path, options) as model, closing(Context(model, options)) as context:
        load = perf_counter() - began
        for line in sys.stdin:
            what, *numbers = json.loads(line)
            if what == "memory":
                answer: Any = {"load": load, "ran": which_ran(), **memory()}
            elif what == "cut":
                context.truncate(*numbers)
                answer = None
            else:
                measure = prompt if what == "prompt" else passes
                answer = measure(context, *numbers)
            print(json.dumps(answer), flush=True)


def prompt(context: Context, length: int, threads: int) -> list[tuple[float, float]]:
    """Read so many tokens, which stay: seconds, and processor time ÷ (time · threads)."""
    context.clear()
    context.set_threads(threads)
    return [timed(context, threads, lambda: context.extend(context.filler(length), 1))]


def passes(context: Context, size: int, threads: int) -> list[tuple[float, float]]:
    """The same of passes over so many tokens after what is held."""
    held, found = len(context.tokens), []
    tokens = context.filler(size)
    context.set_threads(threads)
    for number in range(EACH + 1):
        one = timed(context, threads, lambda: context.extend(tokens, size))
        context.truncate(held)
        if number:
            found.append(one)
    return found


def timed(context: Context, threads: int, do: Callable[[], object]) -> tuple[float, float]:
    """Native seconds of what is done, and its processor time ÷ (time · threads)."""
    native, wall, processor = context.native_seconds, perf_counter(), process_time()
    do()
    share = (process_time() - processor) / (perf_counter() - wall) / threads
    return context.native_seconds - native, share


def memory() -> dict[str, float]:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    sizes = dict(line.split(":", 1) for line in lines)
    return {key: int(sizes[key].split()[0]) * 1024 / 1e6 for key in ("VmRSS", "VmHWM")}


def which_ran() -> str:
    return str(kernels.status().words)


if __name__ == "__main__":
    main()
