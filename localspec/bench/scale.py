"""Models of realistic size that say what the embedded pair says.

A small llama model is written wider and deeper: zero-padded heads and neurons, further layers of
zeros, which add nothing to the residual stream, and norm weights scaled by what the padding does to
the mean square. The function computed stays the same but for rounding, at the full cost of the
larger shape, for a kernel multiplies zeros like anything else. So drafts are accepted as often as
on the embedded pair, and passes take as long as those of a model of that size.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from localspec import paths
from localspec.bench.scaled_gguf import write_f16
from localspec.errors import LocalspecError, UsageError

_ABANDONED = 3600.0  # seconds; a folder in the making is at work for some twenty


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A size to scale a model to: width, layers, feed-forward width, quantization."""

    dim: int
    layers: int
    feed_forward: int
    quant: str


@dataclass(frozen=True, slots=True)
class ScaledPair:
    """Target and draft of a pair, and what it is like."""

    target: ModelShape
    draft: ModelShape
    summary: str


_DRAFT_25M = ModelShape(384, 8, 1024, "Q8_0")
_DRAFT_100M = ModelShape(640, 12, 1792, "Q8_0")
_TARGET_Q4_0 = ModelShape(2048, 16, 8192, "Q4_0")
_TARGET_Q4_K_M = ModelShape(2048, 16, 8192, "Q4_K_M")

PAIRS = {
    "A": ScaledPair(_TARGET_Q4_0, _DRAFT_25M, "1 B in Q4_0, drafted by 25 M"),
    "B": ScaledPair(_TARGET_Q4_0, _DRAFT_100M, "1 B in Q4_0, drafted by 100 M"),
    "C": ScaledPair(_TARGET_Q4_K_M, _DRAFT_25M, "1 B in Q4_K_M, drafted by 25 M"),
}
ALIASES = {"1B": "A"}


def scaled_pair(name: str) -> tuple[Path, Path]:
    """Paths of a pair's target and draft, written on first use and kept in the cache folder.

    The first time takes half a minute, and up to 2 GB of disk while it lasts.

    Args:
        name: a key of PAIRS, or "1b" for the first; upper or lower case.

    Raises:
        UsageError: no such pair, or gguf is not installed.
        LocalspecError: the files cannot be written.
    """
    key = name.upper()
    pair = PAIRS.get(ALIASES.get(key, key))
    if pair is None:
        known = ", ".join([*(alias.lower() for alias in ALIASES), *PAIRS])
        raise UsageError(f"There is no scaled pair '{name}'. Choose from {known}.")
    return (
        _cached(paths.embedded(paths.EMBEDDED_TARGET), pair.target),
        _cached(paths.embedded(paths.EMBEDDED_DRAFT), pair.draft),
    )


def _cached(source: Path, shape: ModelShape) -> Path:
    # Another source, by a newer release, is another file.
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:8]
    stem = source.stem.rsplit("-", 1)[0]
    size = f"{shape.dim}x{shape.layers}-ff{shape.feed_forward}"
    path = paths.cache_folder() / "scale" / f"{stem}-{size}-{shape.quant}-{digest}.gguf"
    if not path.exists():
        scale_model(
            source,
            path,
            dim=shape.dim,
            layers=shape.layers,
            feed_forward=shape.feed_forward,
            quant=shape.quant,
        )
    return path


def scale_model(
    source: Path, destination: Path, *, dim: int, layers: int, feed_forward: int, quant: str
) -> None:
    """Write a llama model in a larger shape; `destination` appears when it is complete.

    Args:
        source: a GGUF of llama architecture. Quantized weights are taken for what they stand for:
            the function written is the quantized model's, not that of a lost original.
        destination: the file to write; its folder is made.
        dim: width, a multiple of the width of the source's heads.
        layers, feed_forward: at least those of the source.
        quant: "F16", or what llama.cpp quantizes to ("Q4_0", "Q4_K_M", "Q8_0" …).

    Raises:
        UsageError: a shape that does not fit the source, an unknown quantization, no gguf.
        ModelInvalid: not a llama model.
        NativeError: llama.cpp could not quantize.
        LocalspecError: the disk is full, or refuses to be written.
    """
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        _sweep(destination.parent)
        with _folder_in_the_making(destination.parent) as folder:
            plain = folder / "f16.gguf"
            write_f16(source, plain, destination.stem, dim, layers, feed_forward)
            done = plain
            if quant.upper() != "F16":
                from localspec.llama.quantize import quantize

                done = folder / "quantized.gguf"
                quantize(plain, done, quant)
            os.replace(done, destination)
    except LocalspecError:
        raise
    except OSError as error:
        raise LocalspecError(
            f"{destination} could not be written: {error.strerror or error}. Free some space (2 GB "
            "for a model of 1 B), or set LOCALSPEC_HOME to a folder that has it."
        ) from error


@contextmanager
def _folder_in_the_making(parent: Path) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="making-", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _sweep(parent: Path) -> None:
    """Remove what a process that was killed left behind."""
    for folder in parent.glob("making-*"):
        if time.time() - folder.stat().st_mtime > _ABANDONED:
            shutil.rmtree(folder, ignore_errors=True)
