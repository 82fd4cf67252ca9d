"""What flash attention costs and brings on this machine, as the context grows.

    python -m tools.flash_attention MODEL [--tokens 300,1000,3000,6000]

On a CPU llama.cpp's flash attention looks at the tokens of a short pass one by one, each through
all that is cached, so that a pass over several (which is what verification is) costs nearly as many
times more attention; without it they share the reading. Prompts may be the other way round. Both
contexts are open at once and take turns. Run it on a quiet machine.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack, closing
from pathlib import Path
from statistics import median

from localspec import LocalspecError, ModelOptions
from localspec.llama.context import Context
from localspec.llama.library import default_threads
from localspec.llama.model import Model
from tools.accelerator import seconds_of

SIZES = (1, 2, 4, 8)
"""Tokens of a pass."""
WAYS = ("on", "off")
ROUNDS = 9


def main() -> None:
    """Print a line for each length."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokens", default="300,1000,3000,6000", help="lengths of the context")
    given = parser.parse_args()
    lengths = sorted(int(part) for part in given.tokens.split(","))
    print(f"{default_threads()} threads; flash attention on / off, medians of {ROUNDS}, in turns")
    room = lengths[-1] + SIZES[-1] + 1
    with ExitStack() as opened:
        contexts = []
        for way in WAYS:
            options = ModelOptions(context=room, threads=default_threads(), flash_attention=way)
            model = opened.enter_context(Model(given.model, options))
            contexts.append(opened.enter_context(closing(Context(model, options))))
        for length in lengths:
            read = [_fill(context, length) for context in contexts]
            told = [_told("prompt", read, "tok/s")]
            for size in SIZES:
                taken: list[list[float]] = [[] for _ in contexts]
                for _ in range(ROUNDS):
                    for context, seconds in zip(contexts, taken, strict=True):
                        seconds_of(context, size)  # not the first of its size, which builds a graph
                        seconds.append(1e3 * seconds_of(context, size))
                told.append(_told(f"T({size})", [median(one) for one in taken], "ms"))
            print(f"{length:6,} tokens: {'; '.join(told)}", flush=True)


def _fill(context: Context, length: int) -> float:
    """Tokens per second of what was read to make the context so long."""
    more, before = length - len(context.tokens), context.native_seconds
    context.extend(context.filler(more))
    return more / (context.native_seconds - before)


def _told(what: str, ways: list[float], unit: str) -> str:
    return f"{what} {' / '.join(f'{value:.1f}' for value in ways)} {unit}"


if __name__ == "__main__":
    try:
        main()
    except LocalspecError as error:
        raise SystemExit(str(error)) from None
