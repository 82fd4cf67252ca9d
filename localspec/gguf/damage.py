"""Find faults in files on which llama.cpp would abort, or read outside its memory.

Each check replaces a missing one before an assertion: `load_hparams`, `load_arch_tensors`
(llama-model.cpp, src/models), `llama_vocab::impl::load` (llama-vocab.cpp), kernels of ggml
(ops.cpp). Faults that llama.cpp reports itself are not checked.
"""

from collections.abc import Iterator
from itertools import chain, islice
from typing import BinaryIO

from localspec.gguf.architectures import ALIKE, KNOWN
from localspec.gguf.file import Array, GGUFFile, TensorInfo
from localspec.text import printable

MAX_LAYERS, MAX_EXPERTS = 512, 1024
"""LLAMA_MAX_LAYERS and LLAMA_MAX_EXPERTS of llama-hparams.h."""

_EPSILONS = (
    "attention.layer_norm_rms_epsilon",
    "attention.layer_norm_epsilon",
    "attention.group_norm_epsilon",
)
_ROPE_SCALING = ("none", "linear", "yarn", "longrope")
_EXPERT_MODELS = frozenset(["bailingmoe2", "glm4moe", "grovemoe", "llada-moe", "smallthinker"])
"""Architectures that assert that there are experts."""
_SINGLE_EXPERT = frozenset(["hunyuan-dense", "hunyuan_vl"])
"""Architectures that are dense with one expert or none."""
_DOUBLE = frozenset(["jamba", "granitehybrid"])
"""Architectures whose recurrent layers have to be twice as wide as the model."""

_DELTA = frozenset(["qwen3next", "qwen35", "qwen35moe"])
"""Architectures whose recurrent layers have to be as wide as all heads together."""

_ROTATING = ALIKE | {"gemma", "gemma2", "gemma3", "glm4moe", "qwen35", "qwen35moe", "qwen3next"}
"""Architectures with RoPE in every layer."""

_SECTIONED = frozenset(["qwen2vl", "qwen3vl", "qwen3vlmoe", "qwen35", "qwen35moe"])
"""Architectures whose positions always have several parts (M-RoPE)."""

_UNEVEN = {
    "full_attention_interval": frozenset(["qwen3next", "qwen35", "qwen35moe", "minimax-01"]),
    "interleave_moe_layer_step": frozenset(["ernie4_5-moe"]),
}
"""Keys by which layer numbers are divided, and their architectures."""

_NOT_WEIGHTS = frozenset(["I8", "I16", "I32", "I64", "F64"])
"""Types that ggml cannot multiply or add."""
_NUMBERS = frozenset(["d2t", "ffn_gate_tid2eid"])
"""Tensors that are lists of tokens or experts."""


def damage(file: GGUFFile) -> str | None:
    """A sentence about the first fault, None if there is none."""
    found = _tokens(file)
    if found is None and file.architecture in KNOWN - {"clip"}:
        key = next(chain(_invalid_numbers(file), _invalid_experts(file)), None)
        found = _weights(file) if key is None else f"its {file.architecture}.{key} is invalid"
    return None if found is None else f"It is damaged: {found}."


def _tokens(file: GGUFFile) -> str | None:
    tokens = file.array("tokenizer.ggml.tokens")
    if tokens is None or not tokens.strings:
        return None
    for name in ("token_type", "scores"):
        values = file.array(f"tokenizer.ggml.{name}")
        if values is not None and len(values) < len(tokens):
            what = "types" if name == "token_type" else "scores"
            return f"it has {what} of {len(values)} tokens, and {len(tokens)} tokens"
    # llama.cpp reads texts up to a NUL, and names empty ones by their index.
    texts = [text.partition(b"\0")[0] for text in tokens.all_bytes()]
    empty, known = texts.count(b""), set(texts)
    if len(known) - bool(empty) < len(texts) - empty:
        return "it lists a token twice"
    # llama.cpp aborts at a character for which SentencePiece's vocabulary has no token.
    spelled = all({b"<0x%02X>" % byte, bytes([byte])} & known for byte in range(256))
    if file.text("tokenizer.ggml.model") == "llama" and not spelled:
        return "it lacks tokens of single bytes"
    return None


def _invalid_numbers(file: GGUFFile) -> Iterator[str]:
    """Keys of the architecture's section whose values are outside of what llama.cpp takes."""
    kind, own, width = file.architecture, file.own_integer, file.own_integer("embedding_length")
    layers = own("block_count")
    if layers is not None:
        if not 1 <= layers <= MAX_LAYERS:
            yield "block_count"
        if (own("nextn_predict_layers") or 0) >= layers:
            yield "nextn_predict_layers"
    for key in _EPSILONS:
        epsilon = file.own(key)
        if isinstance(epsilon, float) and not epsilon >= 0.0:  # or NaN
            yield key
    yield from (key for key, where in _UNEVEN.items() if kind in where and own(key) == 0)
    scaling = file.own("rope.scaling.type")
    if isinstance(scaling, str) and scaling.partition("\0")[0] not in _ROPE_SCALING:
        yield "rope.scaling.type"
    heads = next(iter(file.numbers("attention.head_count")), 0)
    size = own("attention.key_length")
    if size is None and heads and width is not None:
        size = width // heads
    for which in ("", "_swa"):
        # The rotated part is not larger than the head, even, and not 0, which would loop forever.
        rotated, head = own(f"rope.dimension_count{which}"), own(f"attention.key_length{which}")
        head = size if head is None else head
        if heads and rotated is not None and head is not None:
            endless = not rotated and kind in _ROTATING
            if rotated > head or rotated % 2 or endless:
                yield f"rope.dimension_count{which}"
    sections = file.own("rope.dimension_sections")
    if isinstance(sections, Array):
        sizes = [n for n in islice(sections, 4) if isinstance(n, int)]
        always = kind in _SECTIONED
        none = always and sizes and max(sizes[:3]) <= 0
        rotates = always or min(sizes[:2], default=0) > 0
        if none or (rotates and size is not None and sum(sizes) > size):
            yield "rope.dimension_sections"
    inner = own("ssm.inner_size")
    state, rank = own("ssm.state_size") or 0, own("ssm.time_step_rank") or 0
    wanted = 2 * (width or 0) if kind in _DOUBLE else state * rank if kind in _DELTA else inner
    if inner not in (None, wanted):
        yield "ssm.inner_size"


def _invalid_experts(file: GGUFFile) -> Iterator[str]:
    count = file.own_integer("expert_count") or 0
    layers = file.own_integer("block_count") or 0
    used = max(file.numbers("expert_used_count", layers), default=0)
    groups = file.own_integer("expert_group_count") or 0
    chosen = file.own_integer("expert_group_used_count") or 0
    if count <= 1 and file.architecture in _SINGLE_EXPERT:
        count = used = 0
    needed = bool(count) or file.architecture in _EXPERT_MODELS
    if count > MAX_EXPERTS or used > count or (needed and not used):
        yield "expert_used_count"
    if groups >= max(1, count) or (groups > 1 and (count % groups or not 0 < chosen < groups)):
        yield "expert_group_count"


def _weights(file: GGUFFile) -> str | None:
    for tensor in file.tensors:
        if tensor.type in _NOT_WEIGHTS and not _NUMBERS & set(tensor.name.split(".")):
            return f"its {printable(tensor.name, 40)} is of type {tensor.type}"
    return None


def unwritten(file: GGUFFile) -> str | None:
    """A sentence about weights that were never written, as in an incomplete download that
    preallocated its file: zeros in a norm and in a matrix next to it. Zeros only in matrices can be
    intended, in added layers. Reads 4 KB of each norm."""
    for number, path in enumerate(file.parts):
        own = (one for one in file.tensors if one.part == number and one.name.endswith(".weight"))
        weights = sorted(own, key=lambda one: one.offset)
        with path.open("rb", buffering=0) as opened:
            for place, one in enumerate(weights):
                if one.name.endswith("norm.weight") and _is_empty(opened, one):
                    beside = weights[max(place - 1, 0) : place + 2]
                    if any(len(two.shape) > 1 and _is_empty(opened, two) for two in beside):
                        return f"It is damaged: it has only zeros at {printable(one.name, 40)}."
    return None


def _is_empty(file: BinaryIO, tensor: TensorInfo) -> bool:
    file.seek(tensor.offset)
    left, most = tensor.size, 4096
    while left and (block := file.read(min(left, most))):
        if block.strip(b"\0"):
            return False
        left, most = left - len(block), 1 << 20
    return True
