"""Time passes, prompts and loading with localspec's kernels and without, alternately.

    python -m tools.passes MODEL… [--arms off,auto,avxvnni,avx2] [--threads 2,1] [--rounds 7]
        [--sizes 1,2,3,4,5,6,8,12,16] [--prompts 512,2000,6000] [--contexts 300,2000,6000]

Each arm is a process with LOCALSPEC_KERNELS set to its name; ratios are to `off`, stock llama.cpp.
One arm computes at a time; they alternate at every size, and the first one rotates. The first pass
of a turn is not counted, because waiting threads must wake up. Medians are over the passes in which
an arm had its cores: those whose processor time ÷ time is at least HAD_CORES of its usual value. In
each round, as many threads read as many bytes as a pass over one token, as a unit for the figures.
Tables are Markdown.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter, process_time
from typing import Any, NamedTuple

from localspec import LocalspecError, ModelOptions
from localspec.bench.child import Child
from localspec.bench.machine import this_machine
from localspec.gguf.file import GGUFFile
from localspec.gguf.reader import read_gguf
from localspec.hub.resolution import resolve
from localspec.llama import kernels
from localspec.llama.context import Context
from localspec.llama.model import Model
from localspec.pairing.forecast import active_bytes

STOCK = "off"
VARIABLE = "LOCALSPEC_KERNELS"
HAD_CORES = 0.9
COUNTED = 3
"""Passes of a turn that are counted, after one that is not."""
SHORT = 600
"""Prompts of at most this many tokens are read with every number of threads and in every round;
longer ones are read twice, with the first number.
"""
MAX_READ = 1 << 30
"""Bytes of the read test."""


class Sample(NamedTuple):
    """Seconds of a pass or prompt, and processor time ÷ (time · threads)."""

    seconds: float
    share: float


Samples = dict[str, list[Sample]]
"""By arm."""


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("models", nargs="+")
    options.add_argument("--arms", type=lambda text: text.split(","), default=[STOCK, "auto"])
    options.add_argument("--threads", type=_numbers, default=[os.cpu_count() or 1])
    options.add_argument("--sizes", type=_numbers, default=[1, 2, 3, 4, 5, 6, 8, 12, 16])
    options.add_argument("--prompts", type=_numbers, default=[512, 2000, 6000])
    options.add_argument("--contexts", type=_numbers, default=[300, 2000, 6000])
    options.add_argument("--rounds", type=int, default=7)
    options.add_argument("--loads", type=int, default=3, help="fresh processes of each arm")
    options.add_argument("--room", type=int, help=argparse.SUPPRESS)
    args = options.parse_args()
    if args.room is not None:
        answer(Path(args.models[0]), args.room, args.threads[0])
        return
    if len(args.prompts) != len(args.contexts) or any(map(int.__gt__, args.contexts, args.prompts)):
        options.error("Give one context for each prompt, no longer than that prompt.")
    machine = this_machine(args.threads[0])
    print(f"{machine.cpu}, {machine.cores} cores; commit {machine.commit}\n")
    for model in args.models:
        path = resolve(model, offline=True)
        print(f"## {path.stem}\n")
        print("\n".join(loading(path, args)), "\n", flush=True)
        for line in measure(path, args):
            print(line, flush=True)


def loading(path: Path, args: argparse.Namespace) -> Iterator[str]:
    """The time of loading with the file in memory, and the resident memory after a prompt."""
    found: dict[str, list[dict[str, float]]] = defaultdict(list)
    for number in range(args.loads + 1):
        for name in args.arms:
            with arm(name, path, args.contexts[0] + SHORT, args.threads[0]) as ask:
                ask("prompt", args.contexts[0], args.threads[0])
                if number:  # the first ones may read the disk
                    found[name].append(ask("memory"))
    yield "| kernels | load, s | resident, MB | peak, MB | which ran |"
    yield "|---|---:|---:|---:|---|"
    for name, all_ in found.items():
        row = [median(one[key] for one in all_) for key in ("load", "VmRSS", "VmHWM")]
        yield f"| {name} | {row[0]:.2f} | {row[1]:,.0f} | {row[2]:,.0f} | {all_[0]['ran']} |"


def measure(path: Path, args: argparse.Namespace) -> Iterator[str]:
    """The lines of the tables of passes and prompts."""
    room = max(*args.prompts, *args.contexts) + args.sizes[-1] + 1
    reader = Reader(read_gguf(path))
    with ExitStack() as opened:
        arms = {
            name: opened.enter_context(arm(name, path, room, args.threads[0])) for name in args.arms
        }

        def in_turns(number: int, samples: Samples, *what: Any) -> None:
            first = number % len(args.arms)
            for name in args.arms[first:] + args.arms[:first]:
                samples[name] += [Sample(*one) for one in arms[name](*what)]

        for prompt, context in zip(args.prompts, args.contexts, strict=True):
            for threads in args.threads if prompt <= SHORT else args.threads[:1]:
                taken: Samples = defaultdict(list)
                for number in range(args.rounds if prompt <= SHORT else 2):
                    in_turns(number, taken, "prompt", prompt, threads)
                yield f"\nPrompt of {prompt:,} tokens, {threads} threads: {_speeds(taken)}"
            for name in arms:
                arms[name]("cut", context)
            for threads in args.threads:
                costs: dict[int, Samples] = {size: defaultdict(list) for size in args.sizes}
                rates: list[float] = []
                for number in range(args.rounds):
                    rates.append(reader.rate(threads))
                    for size, samples in costs.items():
                        in_turns(number, samples, "passes", size, threads)
                yield f"\n{context:,} tokens of context, {threads} threads; ms (× stock's T(1)):\n"
                yield from _table(costs, args.arms)
                yield f"\n{_of_reading(reader, rates, costs, args.arms)} {_kept(costs)}"


def _kept(costs: dict[int, Samples]) -> str:
    runs = [some for samples in costs.values() for some in samples.values()]
    counted = sum(map(len, map(with_cores, runs)))
    return f"{counted} of {sum(map(len, runs))} passes had their cores."


def _table(costs: dict[int, Samples], arms: Sequence[str]) -> Iterator[str]:
    base = typical(costs[min(costs)][arms[0]])
    yield "| kernels | " + " | ".join(f"n = {size}" for size in costs) + " |"
    yield "|---|" + "---:|" * len(costs)
    for name in arms:
        middle = [typical(samples[name]) for samples in costs.values()]
        cells = (f"{1e3 * one:.{1 if one > 1e-3 else 3}f} ({one / base:.2f})" for one in middle)
        yield f"| {name} | {' | '.join(cells)} |"


def _speeds(samples: Samples) -> str:
    middle = {name: typical(some) for name, some in samples.items()}
    base = next(iter(middle.values()))
    return "; ".join(f"{name} {one:.3f} s ({base / one:.2f} ×)" for name, one in middle.items())


def _of_reading(
    reader: Reader,
    rates: Sequence[float],
    costs: dict[int, Samples],
    arms: Sequence[str],
) -> str:
    best, middle = max(rates), median(rates)
    ratios = []
    for size in (1, 4):
        if size in costs and (size == 1 or not reader.experts):
            times = (typical(costs[size][name]) * middle / reader.bytes for name in arms)
            ways = ", ".join(f"{name} {one:.2f}" for name, one in zip(arms, times, strict=True))
            ratios.append(f"T({size}) ÷ that: {ways}")
    return (
        f"Reading the {reader.bytes / 1e6:,.0f} MB of a token: {1e3 * reader.bytes / middle:.2f} ms"
        f" ({middle / 1e9:.1f} GB/s, best {best / 1e9:.1f}). {'; '.join(ratios)}."
    )


def typical(samples: Sequence[Sample]) -> float:
    """The median seconds of passes that had their cores."""
    return median(one.seconds for one in with_cores(samples))


def with_cores(samples: Sequence[Sample]) -> list[Sample]:
    shares = [one.share for one in samples]
    usual = quantiles(shares, n=4, method="inclusive")[2] if len(shares) > 1 else shares[0]
    return [one for one in samples if one.share >= HAD_CORES * usual]


class Reader:
    """Reads as many bytes as a pass over one token does.

    Attributes:
        bytes: of the weights, without lookup tables and the experts that a token does not use.
        experts: whether it is a mixture, in which several tokens read more.
    """

    def __init__(self, file: GGUFFile) -> None:
        self.experts = bool(file.own_integer("expert_count"))
        self.bytes = active_bytes(file)
        self._data = b"\1" * min(self.bytes, MAX_READ)
        # Searches for a missing byte, to read all of it; ctypes releases the GIL meanwhile.
        self._search = ctypes.CDLL(None).memchr
        self._search.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)
        self._search.restype = ctypes.c_void_p

    def rate(self, threads: int) -> float:
        """Bytes per second that this many threads read together; the best of three."""
        start = ctypes.cast(ctypes.c_char_p(self._data), ctypes.c_void_p).value or 0
        part = len(self._data) // threads

        def read(number: int) -> None:
            assert self._search(start + number * part, 2, part) is None

        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(read, range(threads)))
            best = 0.0
            for _ in range(3):
                began = perf_counter()
                list(pool.map(read, range(threads)))
                best = max(best, part * threads / (perf_counter() - began))
        return best


@contextmanager
def arm(name: str, path: Path, room: int, threads: int) -> Iterator[Callable[..., Any]]:
    """A function that sends requests to a process with these kernels and the model."""
    command = [sys.executable, "-m", "tools.passes", str(path), "--room", str(room)]
    command += ["--threads", str(threads)]
    environment = os.environ | {VARIABLE: name}
    with closing(Child(name, command, environment=environment, piped=True)) as child:
        yield lambda *what: child.ask(what, "measured")


def answer(path: Path, room: int, threads: int) -> None:
    """In the child: open the model, and run the measurements requested on stdin."""
    options = ModelOptions(context=room, threads=threads, gpu_layers=0)
    began = perf_counter()
    with Model(path, options) as model, closing(Context.open(model, options)) as context:
        load = perf_counter() - began
        for line in sys.stdin:
            what, *numbers = json.loads(line)
            if what == "memory":
                found: Any = {"load": load, "ran": kernels.status().words, **memory()}
            elif what == "cut":
                context.truncate(*numbers)
                found = None
            else:
                found = (prompt if what == "prompt" else passes)(context, *numbers)
            print(json.dumps(found), flush=True)


def prompt(context: Context, length: int, threads: int) -> list[Sample]:
    """Read `length` tokens, which stay in the cache."""
    context.clear()
    context.set_threads(threads)
    return [timed(context, threads, lambda: context.extend(context.filler(length), 1))]


def passes(context: Context, size: int, threads: int) -> list[Sample]:
    """Passes over `size` tokens after the cached ones."""
    held, found = len(context.tokens), []
    tokens = context.filler(size)
    context.set_threads(threads)
    for _ in range(COUNTED + 1):
        found.append(timed(context, threads, lambda: context.extend(tokens, size)))
        context.truncate(held)
    return found[1:]


def timed(context: Context, threads: int, do: Callable[[], object]) -> Sample:
    native, wall, processor = context.native_seconds, perf_counter(), process_time()
    do()
    share = (process_time() - processor) / (perf_counter() - wall) / threads
    return Sample(context.native_seconds - native, share)


def memory() -> dict[str, float]:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    sizes = dict(line.split(":", 1) for line in lines)
    return {key: int(sizes[key].split()[0]) * 1024 / 1e6 for key in ("VmRSS", "VmHWM")}


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


if __name__ == "__main__":
    try:
        main()
    except LocalspecError as error:
        raise SystemExit(str(error)) from None
