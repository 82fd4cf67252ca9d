"""Write a llama model in a larger shape so that it computes the same."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from localspec.errors import ModelInvalid, UsageError, extra_package
from localspec.gguf.file import U32, Array, GGUFFile, TensorInfo, Value
from localspec.gguf.reader import read_gguf
from localspec.gguf.writer import NewTensor, require_room, write_gguf
from localspec.llama.types import FILE_TYPES
from localspec.text import parameter_count

_Tensor = npt.NDArray[Any]
_BESIDE = 1.3
"""Disk space needed while a model is written ÷ its size in f16."""


def gguf_package() -> Any:
    """The package gguf, or a UsageError if it is not installed."""
    return extra_package("gguf", "Models are written with", "bench")


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Width, layers, feed-forward width, quantization."""

    dim: int
    layers: int
    feed_forward: int
    quant: str


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of a model of llama architecture; names follow llama's keys.

    Attributes:
        vocabulary: tokens.
        rotated: numbers of a head that RoPE rotates.
        base: RoPE's frequency base.
        epsilon: of the norms.
        context: tokens that it is trained on.
        tied: whether the embeddings are the output matrix as well.
    """

    vocabulary: int
    width: int
    layers: int
    feed_forward: int
    heads: int
    kv_heads: int
    head_width: int
    rotated: int
    base: float = 10000.0
    epsilon: float = 1e-5
    context: int = 2048
    tied: bool = True

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Names and shapes, a matrix [out, in]."""
        yield "token_embd.weight", (self.vocabulary, self.width)
        queries, keys = self.heads * self.head_width, self.kv_heads * self.head_width
        for layer in range(self.layers):
            for name, shape in (
                ("attn_norm", (self.width,)),
                ("attn_q", (queries, self.width)),
                ("attn_k", (keys, self.width)),
                ("attn_v", (keys, self.width)),
                ("attn_output", (self.width, queries)),
                ("ffn_norm", (self.width,)),
                ("ffn_gate", (self.feed_forward, self.width)),
                ("ffn_up", (self.feed_forward, self.width)),
                ("ffn_down", (self.width, self.feed_forward)),
            ):
                yield f"blk.{layer}.{name}.weight", shape
        yield "output_norm.weight", (self.width,)
        if not self.tied:
            yield "output.weight", (self.vocabulary, self.width)

    @property
    def parameters(self) -> int:
        return sum(math.prod(shape) for _, shape in self.tensors())

    def describe(self) -> str:
        return (
            f"width {self.width}, layers {self.layers}, feed-forward {self.feed_forward}, "
            f"{parameter_count(self.parameters)} parameters"
        )


class LlamaFile:
    """A GGUF of llama architecture as the source of another one. `done`: a participle for errors
    about other files. Raises as `read_gguf`, and ModelInvalid: another architecture."""

    def __init__(self, path: Path, done: str = "scaled") -> None:
        self._cannot = f"It cannot be {done}."
        self.path, self.file = path, read_gguf(path)
        if self.file.architecture != "llama":
            raise ModelInvalid(
                f"{path} has the architecture {self.file.architecture}. Only llama models can be "
                f"{done}."
            )
        self.tensors = {tensor.name: tensor for tensor in self.file.tensors}

    def number(self, name: str, default: int | None = None) -> Any:
        """A value of the llama section. Raises ModelInvalid: it is missing, or differs by layer."""
        value = self.file.own(name)
        value = default if value is None else value
        if value is None:
            raise ModelInvalid(f"{self.path} lacks its {name}. {self._cannot}")
        if isinstance(value, Array):
            raise ModelInvalid(f"{self.path} has a different {name} in each layer. {self._cannot}")
        return value

    def shape(self) -> Shape:
        """The model's shape. Raises ModelInvalid: metadata are missing, or head widths differ."""
        width, heads = self.number("embedding_length"), self.number("attention.head_count")
        head_width = self.number("attention.key_length", width // heads)
        if self.number("attention.value_length", head_width) != head_width:
            raise ModelInvalid(f"{self.path} has keys and values of unequal width. {self._cannot}")
        return Shape(
            len(self.file.array("tokenizer.ggml.tokens") or ()),
            width,
            self.number("block_count"),
            self.number("feed_forward_length"),
            heads,
            self.number("attention.head_count_kv", heads),
            head_width,
            self.number("rope.dimension_count", head_width),
            float(self.number("rope.freq_base", 10000)),
            float(self.number("attention.layer_norm_rms_epsilon")),
            self.number("context_length", 2048),
            "output.weight" not in self.tensors,
        )

    def values(self, name: str) -> _Tensor | None:
        """A tensor in f32, None if missing."""
        found = self.tensors.get(name)
        return None if found is None else dequantize_tensor(self.file, found)

    def require(self, needed: Iterable[str], allowed: Iterable[str]) -> None:
        """Raise ModelInvalid for a missing tensor, which would become zeros, or for one that a
        plain llama model does not have."""
        missing, others = {*needed} - self.tensors.keys(), self.tensors.keys() - {*allowed}
        if others or missing:
            shown = ", ".join(sorted(others or missing)[:3])
            why = f"lacks tensors of a llama model ({shown})"
            if others:
                why = "has tensors that a plain llama model does not have "
                why += f"({shown}: perhaps a mixture of experts)"
            raise ModelInvalid(f"{self.path} {why}. {self._cannot}")


def dequantize_tensor(file: GGUFFile, tensor: TensorInfo) -> _Tensor:
    """A tensor in f32, [out, in]. Raises ModelInvalid: a type that the package gguf cannot read."""
    gguf = gguf_package()
    data = np.memmap(file.parts[tensor.part], np.uint8, "r", tensor.offset, (tensor.size,))
    rows = data.reshape(*reversed(tensor.shape[1:]), -1)
    try:
        values: _Tensor = gguf.quants.dequantize(rows, gguf.GGMLQuantizationType[tensor.type])
    except (NotImplementedError, KeyError):
        raise ModelInvalid(
            f"{file.path} is quantized to {tensor.type}, which the package gguf cannot read. Use "
            "another quantization of the model."
        ) from None
    return values


def write_f16(path: Path, destination: Path, name: str, shape: ModelShape) -> None:
    """Write a llama model in that shape, in f16. Raises OSError, ModelInvalid or UsageError.

    The numbers of heads grow with the width.
    """
    dim, layers, feed_forward = shape.dim, shape.layers, shape.feed_forward
    source = LlamaFile(path)
    old = source.shape()
    # The numbers of both kinds of heads grow with the width; head widths stay.
    step = math.lcm(*(old.width // math.gcd(old.width, n) for n in (old.heads, old.kv_heads)))
    if dim % step or dim < old.width or layers < old.layers or feed_forward < old.feed_forward:
        raise UsageError(
            f"{path.name} ({old.width} wide, {old.layers} layers, feed-forward "
            f"{old.feed_forward}) cannot become {dim} wide with {layers} layers and feed-forward "
            f"{feed_forward}. Give no less of each, and a width that is a multiple of {step}."
        )
    heads, kv_heads = (n * dim // old.width for n in (old.heads, old.kv_heads))
    changed: dict[str, Value] = {
        "general.name": name,
        "llama.embedding_length": dim,
        "llama.block_count": layers,
        "llama.feed_forward_length": feed_forward,
        "llama.attention.head_count": heads,
        "llama.attention.head_count_kv": kv_heads,
        # The zeros reduce the mean square by this factor, so epsilon is reduced alike.
        "llama.attention.layer_norm_rms_epsilon": old.epsilon * old.width / dim,
    }
    new = replace(old, width=dim, layers=layers, feed_forward=feed_forward)
    tensors = dict(replace(new, heads=heads, kv_heads=kv_heads).tensors())
    # Some models have biases; those of added layers are zeros.
    biases = {part.replace("weight", "bias"): size[:1] for part, size in tensors.items()}
    tensors |= {part: size for part, size in biases.items() if part in source.tensors}
    if "rope_freqs.weight" in source.tensors:
        tensors["rope_freqs.weight"] = source.tensors["rope_freqs.weight"].shape
    source.require((part for part, _ in old.tensors()), tensors)

    def data(name: str, size: tuple[int, ...]) -> memoryview:
        norm, ratio = name.endswith("norm.weight"), math.sqrt(old.width / dim)
        padded = np.full(size, ratio if norm else 0.0, "<f4" if len(size) == 1 else "<f2")
        values = source.values(name)
        if values is not None:
            padded[tuple(map(slice, values.shape))] = values * np.float32(ratio if norm else 1.0)
        return padded.data

    made = [
        NewTensor(part, size[::-1], "F32" if len(size) == 1 else "F16", partial(data, part, size))
        for part, size in tensors.items()
    ]
    require_room(destination.parent, int(_BESIDE * sum(tensor.size for tensor in made)))
    metadata: dict[str, Value] = {
        key: changed.get(key, value) for key, value in source.file.metadata.items()
    }
    # The source's quantization does not apply to the result.
    metadata.pop("general.quantization_version", None)
    metadata["general.file_type"] = next(n for n, name in FILE_TYPES.items() if name == "F16")
    write_gguf(destination, metadata, {**source.file.kinds, "general.file_type": U32}, made)
