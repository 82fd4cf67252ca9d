"""How localspec does on this machine's GPU: what to look at first where it has never run.

    python -m tools.accelerator [MODEL.gguf] [--draft DRAFT.gguf] [--ctx 2048] [--layers -1]

1. The devices, and the memory that a model was expected to take there beside what llama.cpp's own
   log says it took.
2. A pass over one token after one over four, and the ones after it: what building a graph anew,
   and recording one, cost.
3. Drafting: tokens per second of the default ÷ those of plain decoding, and whether the texts are
   the same. (`localspec doctor` has T(n), `localspec bench` more.)
4. Cancelling in the middle of a prompt: how long it takes to stop.

Any build of llama.cpp will do; one for the CPU alone shows figures to compare with.
"""

from __future__ import annotations

import argparse
import logging
import re
import threading
from collections import defaultdict
from contextlib import closing
from pathlib import Path
from statistics import median
from time import perf_counter

import localspec
from localspec import Cancelled, Drafting, Engine, ModelOptions, SamplingParams, paths
from localspec.gguf.dimensions import Use
from localspec.gguf.reader import read_gguf
from localspec.llama import devices, library
from localspec.llama.context import Context
from localspec.llama.model import Model
from localspec.pairing.memory import place

MIB = 1 << 20
GREEDY = SamplingParams(temperature=0)
TEXT = "Tell me a long story about a fox who finds a map."
STORY = [{"role": "user", "content": TEXT}]
_BUFFER = re.compile(r"(\S+) +(?:model|KV|RS|compute|output) buffer size = +([\d.]+) MiB")


class Buffers(logging.Handler):
    """MiB by device, as llama.cpp's log tells them."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.found: dict[str, float] = defaultdict(float)

    def emit(self, record: logging.LogRecord) -> None:
        for name, size in _BUFFER.findall(record.getMessage()):
            self.found[name] += float(size)


def memory(path: Path, options: ModelOptions) -> None:
    """Foretold, told by llama.cpp, and as the devices themselves count it."""
    log, said = logging.getLogger("localspec.llama"), Buffers()
    log.addHandler(said)
    log.setLevel(logging.DEBUG)
    before = {device.name: device.free for device in devices.devices()}
    try:
        with Model(path, options) as model, closing(Context(model, options)) as context:
            context.extend(context.filler(8))
            after = {device.name: device.free for device in devices.devices()}
    finally:
        log.removeHandler(said)
        log.setLevel(logging.NOTSET)
    layers = options.gpu_layers if library.accelerated() else 0
    placed = place(read_gguf(path), Use(context=options.context), layers)
    print(
        f"foretold: device {placed.device.total / MIB:.1f} MiB, main {placed.host.total / MIB:.1f}"
    )
    for name, size in said.found.items():
        print(f"  llama.cpp's log: {name} {size:.1f} MiB")
    for device in devices.devices():
        taken = (before[device.name] - after[device.name]) / MIB
        print(
            f"  {device.name} ({device.kind}, {device.description}): {taken:.1f} MiB fewer free, "
            f"of {device.total / MIB:.0f}"
        )


def seconds_of(context: Context, count: int) -> float:
    """Of one pass over so many tokens behind what is held, which stays."""
    held, before = len(context.tokens), context.native_seconds
    context.extend(context.filler(count), count)
    seconds = context.native_seconds - before
    context.truncate(held)
    return seconds


def in_a_row(context: Context, most: int = 6, rounds: int = 30) -> None:
    """The passes over one token that follow one over four."""
    context.clear()
    context.extend(context.filler(100))
    found: list[list[float]] = []
    for _ in range(rounds):
        seconds_of(context, 4)
        found.append([seconds_of(context, 1) for _ in range(most)])
    told = " ".join(f"{1e3 * median(column):.3f}" for column in zip(*found, strict=True))
    print(f"T(1) behind a pass over 4, first to {most}th, ms: {told}")


def answered(engine: Engine, count: int, drafter: str) -> tuple[float, str]:
    """Tokens per second, and the text."""
    answer = engine.stream(
        STORY, max_tokens=count, sampling=GREEDY, drafting=Drafting(drafter=drafter)
    ).completion()
    return answer.stats.tokens_per_second, answer.text


def decoding(engine: Engine, count: int, rounds: int) -> None:
    """Drafted against plain, in turns, after one round that is not counted."""
    answers = [
        [answered(engine, count, name) for name in ("none", "auto")] for _ in range(rounds + 1)
    ]
    ratios = [auto[0] / plain[0] for plain, auto in answers[1:]]
    same = "the same text" if answers[0][0][1] == answers[0][1][1] else "texts part"
    plain = median(plain for (plain, _), _ in answers[1:])
    print(
        f"threads {engine.threads}: plain {plain:.1f} tokens/s; auto ÷ plain {median(ratios):.3f} "
        f"({min(ratios):.3f} … {max(ratios):.3f}); {same}"
    )


def cancelling(context: Context) -> None:
    """Seconds from the request to the end of the pass that runs."""
    context.clear()
    asked: list[float] = []

    def ask() -> None:
        asked.append(perf_counter())
        context.cancel()

    timer = threading.Timer(0.05, ask)
    timer.start()
    try:
        while True:
            context.clear()
            context.extend(context.filler(min(512, context.capacity)))
    except Cancelled:
        print(f"cancelled after {1e3 * (perf_counter() - asked[0]):.1f} ms")
    finally:
        context.resume()
        context.clear()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--draft", type=Path)
    parser.add_argument("--ctx", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=-1)
    parser.add_argument("--threads", default="auto")
    parser.add_argument("--flash", default="auto")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    said = parser.parse_args()
    path = said.model or paths.embedded(paths.EMBEDDED_TARGET)
    draft = said.draft or (None if said.model else paths.embedded(paths.EMBEDDED_DRAFT))
    threads = said.threads if said.threads == "auto" else int(said.threads)
    options = ModelOptions(
        context=said.ctx, gpu_layers=said.layers, threads=threads, flash_attention=said.flash
    )
    memory(path, options)
    with localspec.load(path, draft=draft, options=options) as engine:
        context = engine._contexts[0]
        assert isinstance(context, Context)
        engine.calibrate()
        decoding(engine, said.tokens, said.rounds)
        context.watch = None  # from here on the passes are this tool's own
        in_a_row(context)
        cancelling(context)


if __name__ == "__main__":
    main()
