"""Shapes of drafts, given, or chosen for a target by the cost of passes; and weights of llama
models in numpy, read from a GGUF, initialized, written as a GGUF."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import log10
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from localspec.bench.scaled_gguf import LlamaFile, Shape, gguf_package
from localspec.errors import ModelInvalid, UsageError
from localspec.gguf.file import FLOAT, STRING, U32, GGUFFile, Value
from localspec.gguf.writer import NewTensor, write_gguf, writing
from localspec.llama.types import FILE_TYPES
from localspec.pairing.forecast import Forecast, active_bytes, best
from localspec.pairing.recommendations import ACCEPTANCE, TARGET
from localspec.text import printable

Weights = dict[str, npt.NDArray[np.float32]]
"""Weights by their names in a GGUF, with the shapes of `Shape.tensors`."""
Fact = tuple[str, int, Value]
"""A metadata key, GGUF's type of its value, and the value."""
QUANTIZATION_VERSION = 2
Q8_0, Q4_0, F16, F32 = "Q8_0", "Q4_0", "F16", "F32"
PER_TOKEN = ("token_embd.weight", "output.weight")
"""Matrices with a row for each token."""
LAYERS = (1, 2, 3, 4, 6, 8)
PARTS = (1.0, 0.75, 0.5, 1 / 3, 0.25)
"""Widths to try, ÷ the target's."""
BYTES = 34 / 32
BLOCK = 32
"""Weights of a quantization block, of which every width is a multiple."""
_SHAPE = re.compile(r"(\d{1,5})x(\d{1,3})x(\d{1,6})", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ShapeTarget:
    """The target's sizes. `bytes`: read by a pass; `parameters`: in all."""

    vocabulary: int
    width: int
    feed_forward: int
    heads: int
    kv_heads: int
    head_width: int
    bytes: int
    parameters: int


@dataclass(frozen=True, slots=True)
class TrainingFacts:
    """Facts about the training in a finished draft's metadata. `target`: `content_identity` of the
    target; `acceptance`: the mean of Σ min(p, q) over held-back answers."""

    target: str
    acceptance: float
    name: str


def read(path: Path) -> tuple[Shape, Weights]:
    """Shape and weights of a llama model, dequantized."""
    file = LlamaFile(path, "trained")
    shape = file.shape()
    names = [name for name, _ in shape.tensors()]
    file.require(names, names)
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


def target_facts(file: GGUFFile) -> ShapeTarget:
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
    return ShapeTarget(
        len(tokens),
        width,
        file.own_integer("feed_forward_length") or 4 * width,
        heads,
        file.own_integer("attention.head_count_kv") or heads,
        head_width,
        active_bytes(file),
        file.n_parameters,
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
    target: GGUFFile,
    trained: TrainingFacts,
    kind: str = Q8_0,
    tokenizer: Sequence[Fact] | None = None,
) -> None:
    """Write a GGUF of llama architecture. `kind`: type of the matrices, "Q8_0", "Q4_0" or "F16";
    `tokenizer`: its metadata, None for the target's."""
    tokens = tokenizer_of(target) if tokenizer is None else tokenizer
    facts = [*shape_facts("llama", shape), (ACCEPTANCE, FLOAT, trained.acceptance), *tokens]
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
    tensors = list(more)
    for name, each in made.items():
        values = np.ascontiguousarray(each, np.float32)
        kept = kind if values.ndim > 1 else F32
        if kept in (Q8_0, Q4_0) and values.shape[-1] % BLOCK:
            kept = F16
        tensors.append(NewTensor(name, values.shape[::-1], kept, _bytes(values, kept)))
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


def _bytes(values: npt.NDArray[np.float32], kind: str) -> bytes:
    if kind == F32:
        return values.tobytes()
    if kind == F16:
        return values.astype("<f2").tobytes()
    gguf = gguf_package()
    packed: npt.NDArray[np.uint8] = gguf.quants.quantize(values, gguf.GGMLQuantizationType[kind])
    return packed.tobytes()


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


def parse(text: str, target: ShapeTarget) -> Shape:
    """Parse "192x3x512": width x layers x feed-forward; a UsageError if it is not a shape."""
    found = _SHAPE.fullmatch(text)
    if found is None:
        raise UsageError(
            f"'{printable(text)}' is not a shape. Write width x layers x feed-forward, as "
            "192x3x512."
        )
    width, layers, feed_forward = (int(part) for part in found.groups())
    step = max(BLOCK, target.head_width)
    if not width or width % step or not layers or not feed_forward or feed_forward % BLOCK:
        raise UsageError(
            f"A draft of {width}x{layers}x{feed_forward} is not possible. Give a width that is a "
            f"multiple of {step} (a head of the target), and a feed-forward width that is one of "
            f"{BLOCK}."
        )
    return _draft_shape(target, width, layers, feed_forward)


def choose(target: ShapeTarget, curve: Sequence[float]) -> tuple[Shape, Forecast]:
    """The shape with the best forecast, and the forecast; acceptance is guessed from the number of
    weights. `curve`: T(n) ÷ T(1) of the target, measured, from n = 1 on."""
    found = [(shape, _promise(shape, target, curve)) for shape in _candidates(target)]
    # On ties, the smallest, which trains fastest.
    return max(found, key=lambda pair: (round(pair[1].speed_up, 3), -pair[0].parameters))


def _candidates(target: ShapeTarget) -> Iterator[Shape]:
    step = max(BLOCK, target.head_width)
    widths = {max(step, round(target.width * part / step) * step) for part in PARTS}
    for width in sorted(widths):
        ratio = target.feed_forward / target.width
        feed_forward = max(BLOCK, round(width * ratio / BLOCK) * BLOCK)
        for layers in LAYERS:
            yield _draft_shape(target, width, layers, feed_forward)


def _draft_shape(target: ShapeTarget, width: int, layers: int, feed_forward: int) -> Shape:
    heads = max(1, width // target.head_width)
    # The target's number of query heads per key head, if it divides the heads.
    share = max(1, target.heads // max(1, target.kv_heads))
    kv_heads = heads // share if heads % share == 0 else heads
    size = target.head_width
    return Shape(
        target.vocabulary, width, layers, feed_forward, heads, kv_heads, size, rotated=size
    )


def _promise(shape: Shape, target: ShapeTarget, curve: Sequence[float]) -> Forecast:
    cost = 1.1 * shape.parameters * BYTES / max(1, target.bytes) + 0.01
    body = shape.parameters - shape.vocabulary * shape.width
    whole = max(1, target.parameters - target.vocabulary * target.width)
    return best(cost, guess(body / whole), curve)


def guess(share: float) -> float:
    """The expected acceptance of a draft with this share of the target's weights
    (dev/distill.md)."""
    return max(0.2, min(0.9, 0.85 + 0.12 * log10(max(1e-4, min(1.0, share)))))
