"""Weights of llama models in numpy: read from a GGUF, initialized, written as a GGUF."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from localspec.bench.scaled_gguf import LlamaFile, Shape, gguf_package
from localspec.distill.shape import BLOCK
from localspec.errors import ModelInvalid
from localspec.gguf.dimensions import n_layers
from localspec.gguf.file import FLOAT, STRING, U32, GGUFFile, Value
from localspec.gguf.writer import NewTensor, write_gguf, writing
from localspec.llama.types import FILE_TYPES
from localspec.pairing.forecast import ACCEPTANCE, TARGET

Weights = dict[str, npt.NDArray[np.float32]]
"""Weights by their names in a GGUF, with the shapes of `Shape.tensors`."""
Fact = tuple[str, int, Value]
"""A metadata key, GGUF's type of its value, and the value."""
QUANTIZATION_VERSION = 2
Q8_0, Q4_0, F16, F32 = "Q8_0", "Q4_0", "F16", "F32"
PER_TOKEN = ("token_embd.weight", "output.weight")
"""Matrices with a row for each token."""


@dataclass(frozen=True, slots=True)
class TrainingFacts:
    """Facts about the training in a finished draft's metadata. `target`: `content_identity` of the
    target; `acceptance`: the mean of Σ min(p, q) over held-back answers."""

    target: str
    acceptance: float
    name: str


def open_llama(path: Path) -> tuple[LlamaFile, Shape]:
    """A model that can be trained, and its shape; a ModelInvalid for other models."""
    file = LlamaFile(path, "trained")
    shape = file.shape()
    names = [name for name, _ in shape.tensors()]
    file.require(names, names)
    return file, shape


def read(path: Path) -> tuple[Shape, Weights]:
    """Shape and weights of a llama model, dequantized."""
    file, shape = open_llama(path)
    found: Weights = {}
    for name, expected in shape.tensors():
        values = file.values(name)
        if values is None or values.shape != expected:
            raise ModelInvalid(
                f"The shape of tensor {name} in {path} does not match its metadata. It cannot be "
                "trained."
            )
        found[name] = np.array(values, np.float32)
    return shape, found


def target_shape(file: GGUFFile) -> Shape:
    """The shape of a target of any architecture, as far as its metadata give it."""
    tokens = file.array("tokenizer.ggml.tokens")
    width = file.own_integer("embedding_length")
    if tokens is None or width is None:
        raise ModelInvalid(
            f"{file.path} has no vocabulary or width in its metadata, so it cannot be distilled."
        )
    heads = file.own_integer("attention.head_count") or max(1, width // 64)
    head_width = file.own_integer("attention.key_length") or width // heads
    if head_width % BLOCK and BLOCK % head_width:
        head_width = 64
    return Shape(
        len(tokens),
        width,
        n_layers(file),
        file.own_integer("feed_forward_length") or 4 * width,
        heads,
        file.own_integer("attention.head_count_kv") or heads,
        head_width,
        rotated=head_width,
    )


def initial(
    shape: Shape, target: Path, seed: int, kept: npt.NDArray[np.int64] | None = None
) -> Weights:
    """Initial weights: the target's embeddings (or their main directions), norms, first and last
    layers. The rest is drawn at random, as is everything for a target of another architecture.
    `kept`: the target's ids of the shape's tokens, None for all."""
    random = np.random.Generator(np.random.PCG64(seed))
    source = None
    with suppress(ModelInvalid):
        source = LlamaFile(target, "trained")
    layers = 0 if source is None else int(source.number("block_count"))
    taken = _outer_layers(layers, shape.layers)
    found: Weights = {}
    for name, wanted in shape.tensors():
        scale = 1.0 / np.sqrt(wanted[-1])
        drawn = np.asarray(random.standard_normal(wanted) * scale, np.float32)
        if len(wanted) == 1:
            drawn = np.ones(wanted, np.float32)
        elif name.endswith(("attn_output.weight", "ffn_down.weight")):
            drawn /= np.float32(np.sqrt(2 * shape.layers))
        values = None
        if source is not None and layers:
            other = name
            if name.startswith("blk."):
                layer, rest = name.removeprefix("blk.").split(".", 1)
                other = f"blk.{taken[int(layer)]}.{rest}"
            values = source.values(other)
            if values is not None and kept is not None and name in PER_TOKEN:
                values = values[kept]
            if values is not None and values.shape != wanted:
                values = _reduce_width(values, wanted) if name == "token_embd.weight" else None
        found[name] = drawn if values is None else np.array(values, np.float32)
    return found


def _outer_layers(there: int, count: int) -> npt.NDArray[np.int_]:
    """First and last layers: middle ones matter least (Men et al. 2024, ShortGPT, section 3)."""
    first, numbers = (count + 1) // 2, np.arange(count)
    taken = np.where(numbers < first, numbers, there - count + numbers)
    return taken.clip(0, max(0, there - 1))


def _reduce_width(values: npt.NDArray[Any], wanted: tuple[int, ...]) -> npt.NDArray[Any] | None:
    """Project embeddings on the directions in which they differ most."""
    if values.shape[0] != wanted[0] or values.shape[1] < wanted[1]:
        return None
    values = np.asarray(values, np.float32)
    _, directions = np.linalg.eigh(values.T @ values)
    return np.asarray(values @ directions[:, ::-1][:, : wanted[1]])


def write(
    path: Path,
    shape: Shape,
    weights: Mapping[str, npt.NDArray[np.float32]],
    tokenizer: Sequence[Fact],
    trained: TrainingFacts,
    kind: str = Q8_0,
) -> None:
    """Write a GGUF of llama architecture. `kind`: type of the matrices, "Q8_0", "Q4_0" or "F16"."""
    facts = [*shape_facts("llama", shape), (ACCEPTANCE, FLOAT, trained.acceptance), *tokenizer]
    made = {name: weights[name] for name, _ in shape.tensors()}
    write_file(path, facts, trained, made, kind)


def write_file(
    path: Path,
    facts: Sequence[Fact],
    trained: TrainingFacts,
    made: Mapping[str, npt.NDArray[np.float32]],
    kind: str,
    more: Sequence[NewTensor] = (),
) -> None:
    """Write a GGUF atomically. `kind`: type of the matrices; those whose rows are not whole blocks
    are written in F16."""
    number = next(number for number, name in FILE_TYPES.items() if name == kind)
    facts = [
        *facts,
        ("general.name", STRING, trained.name),
        (TARGET, STRING, trained.target),
        ("general.file_type", U32, number),
        ("general.quantization_version", U32, QUANTIZATION_VERSION),
    ]
    gguf, tensors = gguf_package(), list(more)
    for name, each in made.items():
        values = np.ascontiguousarray(each, np.float32)
        kept = kind if values.ndim > 1 else F32
        if kept in (Q8_0, Q4_0) and values.shape[-1] % BLOCK:
            kept = F16
        packed = gguf.quants.quantize(values, gguf.GGMLQuantizationType[kept])
        tensors.append(NewTensor(name, values.shape[::-1], kept, packed.tobytes()))
    metadata = {key: value for key, _, value in facts}
    kept = "The training is kept: make room, or name another --output, and run the same again."
    with writing(path, kept) as partial:
        write_gguf(partial, metadata, {key: type_ for key, type_, _ in facts}, tensors)


def tokenizer_of(target: GGUFFile) -> list[Fact]:
    return [
        (key, target.kinds[key], value)
        for key, value in target.metadata.items()
        if key.startswith("tokenizer.")
    ]


def shape_facts(architecture: str, shape: Shape) -> list[Fact]:
    """The metadata from which llama.cpp builds a model or head of this shape."""
    numbers = {
        "vocab_size": shape.vocabulary,
        "context_length": shape.context,
        "embedding_length": shape.width,
        "block_count": shape.layers,
        "feed_forward_length": shape.feed_forward,
        "attention.head_count": shape.heads,
        "attention.head_count_kv": shape.kv_heads,
        "attention.key_length": shape.head_width,
        "attention.value_length": shape.head_width,
        "rope.dimension_count": shape.rotated,
    }
    floats = {"attention.layer_norm_rms_epsilon": shape.epsilon, "rope.freq_base": shape.base}
    found: list[Fact] = [("general.architecture", STRING, architecture)]
    found += [(f"{architecture}.{key}", U32, value) for key, value in numbers.items()]
    return found + [(f"{architecture}.{key}", FLOAT, value) for key, value in floats.items()]
