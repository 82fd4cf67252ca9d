"""Damaged model files of every weight type through `localspec run`, with kernels and without.

    python -m tools.kernel_damage [--files 2000] [--seed 0] [--passes 10000]

Small models are damaged as `tools.endure` does it, or in their weights: infinities, noise and
zeros where scales and quants were. Each file goes through both, in processes of their own; with
kernels there may be no end by a signal, traceback or wordless exit that stock llama.cpp does not
come to as well. Then so many passes with kernels, of 1 to 16 tokens, may not take more memory.
Ends with 1 if anything was wrong; the files of failures stay.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import psutil

from localspec import ModelOptions
from localspec.llama.context import Context
from localspec.llama.model import Model
from localspec.llama.quantize import quantize
from localspec.paths import EMBEDDED_TARGET, embedded
from tests.gguf.mutations import misstate, mutate, places
from tests.support.ggufs import tiny_llama
from tools.endure.mutated_ggufs import RUN, _import_all, _kind, _wrong, ended
from tools.kernel_quality import TYPES, VARIABLE, require_kernels
from tools.made_moe import mix

WAYS = ("auto", "off")
"""With kernels, and stock."""
WIDTH = 256
"""The narrowest rows that every type fits."""
ODD = (b"\xff", b"\x00", b"\x7c", b"\x7f", b"\x80")
"""Bytes that make a scale in F16, BF16 or E8M0 infinite, not a number, zero or huge."""
GROWTH = 8 << 20
"""Bytes that passes may take more at their end than after the first tenth."""


def main() -> int:
    """Run all, and say what was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--passes", type=int, default=10_000)
    said = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="kernel-damage-"))
    models = {path.stem: path.read_bytes() for path in sound(folder)}
    failures = damaged(folder, models, said.files, said.seed)
    grown = growth(said.passes)
    print(f"{said.passes:,} passes: {grown / 2**20:+.1f} MiB after the first tenth")
    print("\n".join(failures) or f"No failure with kernels. {folder} can be removed.")
    return int(bool(failures) or grown > GROWTH)


def sound(folder: Path) -> list[Path]:
    """A small model of each type, and a mixture of experts of Q4_K."""
    dense = tiny_llama(folder / "dense.gguf", dim=WIDTH, heads=4, ff=WIDTH)
    mixed = folder / "mixed.gguf"
    mix(dense, mixed)
    found = []
    for source, types in ((dense, TYPES), (mixed, {"experts": "Q4_K_M"})):
        for name, quant in types.items():
            found.append(folder / f"{name}.gguf")
            quantize(source, found[-1], quant, pure=True)
    return found


def damaged(folder: Path, models: dict[str, bytes], count: int, seed: int) -> list[str]:
    """The failures with kernels that stock does not have. First, sound files have to be answered:
    what is tested once and kept is then known."""
    _import_all()
    failures = []
    for name in models:
        for way in WAYS:
            status, words = outcome(way, folder / f"{name}.gguf", folder)
            if status:
                failures.append(f"{name}, sound, {way}: {status} {words.strip()[-200:]}")
    told: Counter[tuple[str, ...]] = Counter()
    path = folder / "damaged.gguf"
    for number in range(count):
        dice = random.Random(f"{seed}/{number}")
        name = dice.choice([*models])
        data = damage(models[name], dice)
        path.write_bytes(data)
        ends = [outcome(way, path, folder) for way in WAYS]
        told[tuple(_kind(*end) for end in ends)] += 1
        mine, stock = (_wrong(*end) for end in ends)
        if mine is not None and stock is None:
            failures.append(f"{seed}/{number} {name}: {mine}")
            (folder / f"failed-{number}.gguf").write_bytes(data)
    print("| with kernels | stock | files |\n|---|---|---:|")
    for kinds, many in told.most_common():
        print(f"| {' | '.join(kinds)} | {many} |")
    return failures


def damage(data: bytes, dice: random.Random) -> bytes:
    """One damaged copy: half of them in their weights."""
    kind = dice.randrange(4)
    if kind == 0:
        return mutate(data, dice)
    if kind == 1:
        return misstate(data, places(data), dice)
    changed = bytearray(data)
    start = data.index(b"output_norm.weight") + 2000
    for _ in range(dice.choice((1, 4, 64))):
        length = dice.choice((2, 32, 4096))
        at = dice.randrange(start, len(data) - length)
        byte = dice.choice((*ODD, None))
        changed[at : at + length] = dice.randbytes(length) if byte is None else byte * length
    return bytes(changed)


def outcome(way: str, path: Path, folder: Path) -> tuple[int, str]:
    """Exit code and standard error of `localspec run`."""
    os.environ[VARIABLE] = way
    return ended(("run", "hi", "-m", str(path), *RUN), folder / "said")


def growth(passes: int, sizes: Sequence[int] = range(1, 17)) -> int:
    """Bytes that such passes take more at their end than after the first tenth."""
    os.environ[VARIABLE] = WAYS[0]
    options, dice = ModelOptions(context=512, threads=1), random.Random(29)
    process, before = psutil.Process(), 0
    with (
        Model(embedded(EMBEDDED_TARGET), options) as model,
        closing(Context(model, options)) as context,
    ):
        require_kernels()
        for number in range(passes):
            size = dice.choice(sizes)
            context.extend(context.filler(size), size)
            context.truncate(len(context.tokens) - dice.randrange(size + 1))
            if len(context.tokens) > 400:
                context.clear()
            if number == passes // 10:
                before = process.memory_info().rss
        return int(process.memory_info().rss - before)


if __name__ == "__main__":
    raise SystemExit(main())
