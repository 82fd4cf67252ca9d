"""Writes a llama model in a larger shape so that it computes the same."""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from localspec.errors import LocalspecError, ModelInvalid, UsageError
from localspec.llama.quantize import file_type
from localspec.text import gigabytes, printable

_Tensor = npt.NDArray[Any]
_BESIDE = 1.3
"""Bytes on the disk while a model is written ÷ bytes in f16."""


_SHAPE = re.compile(r"(\d{1,6})x(\d{1,4})x(\d{1,6}):(\w+)", re.IGNORECASE)


def gguf_package() -> Any:
    """The package gguf, or a UsageError where it is not installed."""
    try:
        return import_module("gguf")
    except ImportError:
        raise UsageError(
            "Models are written with the package gguf, which is not installed. "
            "Install it with: pip install '.[bench]' in the clone of localspec"
        ) from None


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Width, layers, feed-forward width, quantization."""

    dim: int
    layers: int
    feed_forward: int
    quant: str

    @classmethod
    def parse(cls, text: str) -> ModelShape:
        """Parse "2304x30x4608:Q4_0".

        Raises UsageError: another form, or an unknown quantization.
        """
        found = _SHAPE.fullmatch(text)
        if found is None:
            raise UsageError(
                f"'{printable(text)}' is not a shape. Write width x layers x "
                "feed-forward:quantization"
                ", as 2304x30x4608:Q4_0."
            )
        file_type(found[4])
        return cls(int(found[1]), int(found[2]), int(found[3]), found[4].upper())


class LlamaFile:
    """A GGUF of llama architecture, opened to write another one from it.

    Args:
        done: what cannot be done to other files, for errors.

    Raises ModelInvalid: not a whole GGUF of that architecture.
    """

    def __init__(self, path: Path, done: str = "scaled") -> None:
        self._cannot = f"It cannot be {done}."
        gguf = gguf_package()
        try:
            reader = gguf.GGUFReader(path)
        except (ValueError, IndexError) as error:
            raise ModelInvalid(f"{path} is not a complete GGUF file: {error}.") from None
        self.path = path
        self.fields = {
            name: field
            for name, field in reader.fields.items()
            if not name.startswith("GGUF.") and name != "general.architecture"
        }
        architecture = reader.fields["general.architecture"].contents()
        if architecture != "llama":
            raise ModelInvalid(
                f"{path} has the architecture {architecture}. Only llama models can be {done}."
            )
        self.tensors = {tensor.name: tensor for tensor in reader.tensors}
        parts = self.fields.get("split.count")
        if parts is not None and parts.contents() > 1:
            raise ModelInvalid(
                f"{path} is one of {parts.contents()} parts of a model. Join them first, with "
                "llama.cpp's llama-gguf-split --merge."
            )

    def number(self, name: str, default: int | None = None) -> Any:
        """A value of the llama section.

        Raises ModelInvalid: there is none, or one for each layer.
        """
        field = self.fields.get(f"llama.{name}")
        value = default if field is None else field.contents()
        if value is None:
            raise ModelInvalid(f"{self.path} lacks its {name}. {self._cannot}")
        if isinstance(value, list):
            raise ModelInvalid(f"{self.path} has another {name} in each layer. {self._cannot}")
        return value

    def values(self, name: str) -> _Tensor | None:
        """A tensor in f32, None where there is none."""
        found = self.tensors.get(name)
        if found is None:
            return None
        try:
            values: _Tensor = gguf_package().quants.dequantize(found.data, found.tensor_type)
        except NotImplementedError:
            raise ModelInvalid(
                f"{self.path} is quantized to {found.tensor_type.name}, which the package gguf "
                "cannot read. Take another quantization of the model."
            ) from None
        return values

    def require(self, names: Iterable[str]) -> None:
        """Raise ModelInvalid for a missing tensor, which would be taken for zeros."""
        missing = sorted(set(names) - self.tensors.keys())
        if missing:
            raise ModelInvalid(
                f"{self.path} lacks tensors of a llama model ({', '.join(missing[:3])}). "
                f"{self._cannot}"
            )

    def require_no_others_than(self, names: Iterable[str]) -> None:
        """Raise ModelInvalid for a tensor that a plain llama model has not."""
        others = sorted(self.tensors.keys() - set(names))
        if others:
            raise ModelInvalid(
                f"{self.path} has tensors that a plain llama model has not "
                f"({', '.join(others[:3])}: a mixture of experts, perhaps). {self._cannot}"
            )

    def writer(self, destination: Path, changed: dict[str, Any], *, leave: Sequence[str]) -> Any:
        gguf = gguf_package()
        writer = gguf.GGUFWriter(destination, "llama")
        for key, field in self.fields.items():
            if key in leave:
                continue
            if field.types[0] == gguf.GGUFValueType.ARRAY:
                writer.add_array(key, field.contents())
            else:
                writer.add_key_value(key, changed.get(key, field.contents()), field.types[0])
        return writer


@dataclass(frozen=True, slots=True)
class Padded:
    """The source's values × `scale`, padded with `fill`; rows consist of so many `blocks`."""

    shape: tuple[int, ...]
    scale: float = 1.0
    fill: float = 0.0
    blocks: int = 1

    @property
    def kind(self) -> np.dtype[Any]:
        return np.dtype(np.float32 if len(self.shape) == 1 else np.float16)

    @property
    def size(self) -> int:
        return math.prod(self.shape) * self.kind.itemsize

    def of(self, values: _Tensor | None, kind: npt.DTypeLike | None = None) -> _Tensor:
        width = self.shape[-1] // self.blocks
        padded = np.full((*self.shape[:-1], self.blocks, width), self.fill, kind or self.kind)
        if values is not None:
            old = values.reshape(*values.shape[:-1], self.blocks, -1)
            padded[tuple(slice(n) for n in old.shape)] = old * np.float32(self.scale)
        return padded.reshape(self.shape)


def write_f16(path: Path, destination: Path, name: str, shape: ModelShape) -> None:
    """Write a llama model in that shape, in f16; errors as of `localspec.bench.scale.scale_model`.

    The numbers of heads grow with the width.
    """
    dim, layers, feed_forward = shape.dim, shape.layers, shape.feed_forward
    gguf = gguf_package()
    source = LlamaFile(path)
    old_dim, old_layers = source.number("embedding_length"), source.number("block_count")
    old_feed_forward = source.number("feed_forward_length")
    heads = source.number("attention.head_count")
    kv_heads = source.number("attention.head_count_kv", heads)
    # A head keeps its width, and so do its rotations (rope).
    key_width = source.number("attention.key_length", old_dim // heads)
    value_width = source.number("attention.value_length", old_dim // heads)
    # Both kinds of heads grow by what the width grows by.
    step = math.lcm(*(old_dim // math.gcd(old_dim, count) for count in (heads, kv_heads)))
    if dim % step or dim < old_dim or layers < old_layers or feed_forward < old_feed_forward:
        raise UsageError(
            f"{path.name} ({old_dim} wide, {old_layers} layers, feed-forward {old_feed_forward}) "
            f"cannot become {dim} wide with {layers} layers and feed-forward {feed_forward}. "
            f"Give no less of each, and a width that is a multiple of {step}."
        )
    new_heads, new_kv_heads = heads * dim // old_dim, kv_heads * dim // old_dim
    epsilon = "attention.layer_norm_rms_epsilon"
    changed = {
        "general.name": name,
        "llama.embedding_length": dim,
        "llama.block_count": layers,
        "llama.feed_forward_length": feed_forward,
        "llama.attention.head_count": new_heads,
        "llama.attention.head_count_kv": new_kv_heads,
        # The zeros make the mean square smaller by this factor, and all that is added to it.
        f"llama.{epsilon}": source.number(epsilon) * old_dim / dim,
    }
    norm = Padded((dim,), math.sqrt(old_dim / dim), math.sqrt(old_dim / dim))
    queries, keys = new_heads * key_width, new_kv_heads * key_width
    values, mixed = new_kv_heads * value_width, new_heads * value_width
    parts = {
        "attn_norm.weight": norm,
        "ffn_norm.weight": norm,
        "attn_q.weight": Padded((queries, dim)),
        "attn_k.weight": Padded((keys, dim)),
        "attn_v.weight": Padded((values, dim)),
        "attn_output.weight": Padded((dim, mixed)),
        "ffn_gate.weight": Padded((feed_forward, dim)),
        "ffn_up.weight": Padded((feed_forward, dim)),
        "ffn_down.weight": Padded((dim, feed_forward)),
    }
    # Some models have these; of a layer that adds nothing they would be zeros.
    optional = {
        part.replace("weight", "bias"): Padded(padded.shape[:1])
        for part, padded in parts.items()
        if padded is not norm
    }
    vocabulary = len(source.fields["tokenizer.ggml.tokens"].data)
    tensors = {"token_embd.weight": Padded((vocabulary, dim)), "output_norm.weight": norm}
    if "output.weight" in source.tensors:  # else it is the embedding, transposed
        tensors["output.weight"] = Padded((vocabulary, dim))
    if "rope_freqs.weight" in source.tensors:
        tensors["rope_freqs.weight"] = Padded((int(source.tensors["rope_freqs.weight"].shape[0]),))
    for layer in range(layers):
        tensors |= {f"blk.{layer}.{part}": padded for part, padded in parts.items()}
        there = {f"blk.{layer}.{part}": padded for part, padded in optional.items()}
        tensors |= {part: padded for part, padded in there.items() if part in source.tensors}
    source.require_no_others_than(tensors)
    source.require(f"blk.{layer}.{part}" for layer in range(old_layers) for part in parts)
    source.require(["token_embd.weight", "output_norm.weight"])
    _require_room(destination.parent, sum(padded.size for padded in tensors.values()))
    # How the source was quantized is of no account here.
    writer = source.writer(
        destination, changed, leave=("general.file_type", "general.quantization_version")
    )
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    try:
        _write_tensors(writer, source, tensors)
    finally:
        writer.close()


def _require_room(folder: Path, size: int) -> None:
    needed, free = int(size * _BESIDE), shutil.disk_usage(folder).free
    if free < needed:
        raise LocalspecError(
            f"Writing the model takes {gigabytes(needed)} for a while, and {folder.parent} has "
            f"{gigabytes(free)}. Free some space, or set LOCALSPEC_HOME to a folder that has it."
        )


def _write_tensors(writer: Any, source: LlamaFile, tensors: dict[str, Padded]) -> None:
    """One tensor at a time: all of them would be gigabytes."""
    for name, padded in tensors.items():
        writer.add_tensor_info(name, padded.shape, padded.kind, padded.size)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for name, padded in tensors.items():
        writer.write_tensor_data(padded.of(source.values(name)))
