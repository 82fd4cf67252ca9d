"""Models of realistic size that say what the embedded pair says.

A small llama model is written wider and deeper: zero-padded heads and neurons, further layers of
zeros, which add nothing to the residual stream, and norm weights scaled by what the padding does to
the mean square. The function computed stays the same but for rounding, at the full cost of the
larger shape, for a kernel multiplies zeros like anything else. So drafts are accepted as often as
on the embedded pair, and passes take as long as those of a model of that size.
"""

from __future__ import annotations

import hashlib
import math
import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from localspec import paths
from localspec.errors import LocalspecError, ModelInvalid, UsageError

if TYPE_CHECKING:
    from gguf import GGUFWriter

_Tensor = npt.NDArray[Any]
_ABANDONED = 3600.0  # seconds; a folder in the making is at work for some twenty


@dataclass(frozen=True, slots=True)
class Shape:
    """A size to scale a model to: width, layers, feed-forward width, quantization."""

    dim: int
    layers: int
    feed_forward: int
    quant: str


@dataclass(frozen=True, slots=True)
class Pair:
    """Target and draft of a pair, and what it is like."""

    target: Shape
    draft: Shape
    summary: str


_DRAFT_25M = Shape(384, 8, 1024, "Q8_0")
_DRAFT_100M = Shape(640, 12, 1792, "Q8_0")
_TARGET_Q4_0 = Shape(2048, 16, 8192, "Q4_0")
_TARGET_Q4_K_M = Shape(2048, 16, 8192, "Q4_K_M")

PAIRS = {
    "A": Pair(_TARGET_Q4_0, _DRAFT_25M, "1 B in Q4_0, drafted by 25 M"),
    "B": Pair(_TARGET_Q4_0, _DRAFT_100M, "1 B in Q4_0, drafted by 100 M"),
    "C": Pair(_TARGET_Q4_K_M, _DRAFT_25M, "1 B in Q4_K_M, drafted by 25 M"),
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


def _cached(source: Path, shape: Shape) -> Path:
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
            _write_f16(source, plain, destination.stem, dim, layers, feed_forward)
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


def _gguf() -> Any:
    try:
        return import_module("gguf")
    except ImportError:
        raise UsageError(
            "Scaled models are written with the package gguf, which is not installed. "
            "Install it with: pip install 'localspec[bench]'"
        ) from None


class _Source:
    """A llama model to enlarge: its metadata and its tensors in f32."""

    def __init__(self, path: Path) -> None:
        gguf = _gguf()
        try:
            reader = gguf.GGUFReader(path)
        except (ValueError, IndexError) as error:
            raise ModelInvalid(f"{path} is not a complete GGUF file: {error}.") from None
        self.path = path
        self.fields = {
            name: field
            for name, field in reader.fields.items()
            # The writer's own, and those that say how the source was quantized.
            if not name.startswith("GGUF.")
            and name
            not in ("general.architecture", "general.file_type", "general.quantization_version")
        }
        architecture = reader.fields["general.architecture"].contents()
        if architecture != "llama":
            raise ModelInvalid(
                f"{path} has the architecture {architecture}. Only llama models can be scaled."
            )
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}

    def key(self, name: str) -> Any:
        """A value of the llama section."""
        return self.fields[f"llama.{name}"].contents()

    def tensor(self, name: str) -> _Tensor | None:
        """Its values in f32, None where there is no such tensor."""
        found = self._tensors.get(name)
        if found is None:
            return None
        values: _Tensor = _gguf().quants.dequantize(found.data, found.tensor_type)
        return values

    def require_no_others_than(self, names: Iterable[str]) -> None:
        """A tensor left out would make another function."""
        others = sorted(self._tensors.keys() - set(names))
        if others:
            raise ModelInvalid(
                f"{self.path} has tensors that a plain llama model with tied embeddings has not "
                f"({', '.join(others[:3])}). It cannot be scaled."
            )


def _write_f16(
    path: Path, destination: Path, name: str, dim: int, layers: int, feed_forward: int
) -> None:
    gguf = _gguf()
    source = _Source(path)
    old_dim, heads = source.key("embedding_length"), source.key("attention.head_count")
    kv_heads, head = source.key("attention.head_count_kv"), old_dim // heads
    new_heads = dim // head
    if (
        dim % head
        or new_heads * kv_heads % heads
        or dim < old_dim
        or layers < source.key("block_count")
        or feed_forward < source.key("feed_forward_length")
    ):
        raise UsageError(
            f"{path.name} ({old_dim} wide, {source.key('block_count')} layers, feed-forward "
            f"{source.key('feed_forward_length')}) cannot become {dim} wide with {layers} layers "
            f"and feed-forward {feed_forward}. Give no less of each, and a width that is a "
            f"multiple of {head * heads // math.gcd(heads, kv_heads)}."
        )
    new_kv_heads = new_heads * kv_heads // heads
    epsilon = "llama.attention.layer_norm_rms_epsilon"
    changed = {
        "general.name": name,
        "llama.embedding_length": dim,
        "llama.block_count": layers,
        "llama.feed_forward_length": feed_forward,
        "llama.attention.head_count": new_heads,
        "llama.attention.head_count_kv": new_kv_heads,
        # The zeros make the mean square smaller by this factor, and all that is added to it.
        epsilon: source.fields[epsilon].contents() * old_dim / dim,
    }
    writer = gguf.GGUFWriter(destination, "llama")
    for key, field in source.fields.items():
        if field.types[0] == gguf.GGUFValueType.ARRAY:
            writer.add_array(key, field.contents())
        else:
            writer.add_key_value(key, changed.get(key, field.contents()), field.types[0])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    shapes: dict[str, tuple[int, ...]] = {
        "attn_q": (new_heads * head, dim),
        "attn_k": (new_kv_heads * head, dim),
        "attn_v": (new_kv_heads * head, dim),
        "attn_output": (dim, new_heads * head),
        "ffn_gate": (feed_forward, dim),
        "ffn_up": (feed_forward, dim),
        "ffn_down": (dim, feed_forward),
        "attn_norm": (dim,),
        "ffn_norm": (dim,),
    }
    vocabulary = len(source.fields["tokenizer.ggml.tokens"].data)
    tensors: dict[str, tuple[int, ...]] = {"token_embd.weight": (vocabulary, dim)}
    tensors["output_norm.weight"] = (dim,)
    tensors |= {
        f"blk.{layer}.{part}.weight": shape
        for layer in range(layers)
        for part, shape in shapes.items()
    }
    source.require_no_others_than(tensors)
    try:
        _write_tensors(writer, source, tensors, math.sqrt(old_dim / dim))
    finally:
        writer.close()


def _write_tensors(
    writer: GGUFWriter, source: _Source, tensors: dict[str, tuple[int, ...]], norm_scale: float
) -> None:
    """One at a time: all of them together would be gigabytes."""
    for name, shape in tensors.items():
        kind = np.dtype(np.float32 if len(shape) == 1 else np.float16)
        writer.add_tensor_info(name, shape, kind, math.prod(shape) * kind.itemsize)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for name, shape in tensors.items():
        values = source.tensor(name)
        if len(shape) == 1:
            padded = np.full(shape, norm_scale, np.float32)
            if values is not None:
                padded[: len(values)] = values * norm_scale
        else:
            padded = np.zeros(shape, np.float16)
            if values is not None:
                padded[: values.shape[0], : values.shape[1]] = values
        writer.write_tensor_data(padded)
