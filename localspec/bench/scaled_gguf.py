"""Writes a llama model in a larger shape, tensor by tensor, so that it computes the same."""

from __future__ import annotations

import math
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from localspec.errors import ModelInvalid, UsageError

if TYPE_CHECKING:
    from gguf import GGUFWriter

_Tensor = npt.NDArray[Any]


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


def write_f16(
    path: Path, destination: Path, name: str, dim: int, layers: int, feed_forward: int
) -> None:
    """Write the model at `path` in that shape, in f16; see `localspec.bench.scale.scale_model`."""
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
