"""Kinds of trained heads, and checks of llama.cpp's assertions about those that read layers of
their target (EAGLE-3, DFlash, DSpark)."""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from localspec.errors import DraftMismatch, ModelInvalid
from localspec.gguf.file import GGUFFile, TensorInfo
from localspec.gguf.mtp import is_mtp_only
from localspec.gguf.reader import readable
from localspec.llama.model import Model

EAGLE3, MEDUSA, MTP, DFLASH = "eagle3", "medusa", "mtp", "dflash"
UNSUPPORTED_HEADS = {"gemma4-assistant": "Gemma 4 assistant"}
"""Heads that llama.cpp opens, but localspec does not support."""
_OTHER_HEAD_TENSORS = {
    "selector_hidden.weight": "DFlash2",
    "hc_head_fn.weight": "DSpark for DeepSeek-V4",
}
"""Tensors that identify other unsupported kinds."""
_OF_EAGLE = ("fc.weight", "output_norm.weight", "blk.0.attn_q.weight", "blk.0.ffn_down.weight")
EMBEDDINGS, OUTPUT = "token_embd.weight", "output.weight"


def head_kind(path: Path) -> str | None:
    """EAGLE3, MEDUSA, MTP, DFLASH or a key of UNSUPPORTED_HEADS; None for other files."""
    if (file := readable(path)) is None:
        return None
    named = file.architecture in (EAGLE3, MEDUSA, DFLASH, *UNSUPPORTED_HEADS)
    return file.architecture if named else MTP if is_mtp_only(file) else None


def unsupported_head(path: Path, kind: str) -> ModelInvalid:
    return ModelInvalid(
        f"{path.name} is a {kind} head, which localspec does not support, though llama.cpp can "
        "compute it. Choose an EAGLE-3, DFlash or DSpark head, a model with MTP layers, or a draft "
        "model, or leave it out with --draft none."
    )


def target_layers(file: GGUFFile, target: Model) -> tuple[int, ...]:
    """The target layers whose inputs a head reads, in its order. Raises ModelInvalid if llama.cpp
    cannot compute the head, and DraftMismatch if it was made for another target."""
    path, tensors, eagle = file.path, file.by_name, file.architecture == EAGLE3
    for tensor, kind in _OTHER_HEAD_TENSORS.items():
        if tensor in tensors:
            raise unsupported_head(path, kind)
    named = file.array(f"{file.architecture}.target_layers")
    layers = [] if named is None or named.strings else [int(layer) for layer in named]
    if min(layers, default=-1) < 0 or (eagle and len(layers) != 3):
        raise damaged_head(path, f"its {file.architecture}.target_layers is invalid")
    sizes = require_sizes(file, "block_count", "embedding_length", "feed_forward_length")
    width = reads = sizes["embedding_length"]
    if eagle:
        reads = require_sizes(file, "target_hidden_size")["target_hidden_size"]
        if sizes["block_count"] != 1:
            raise damaged_head(path, f"it has {sizes['block_count']} layers instead of one")
    _require_attention(file, width)
    missing = [name for name in _OF_EAGLE if eagle and name not in tensors]
    if "d2t" in tensors:
        d2t_ids(file, tensors["d2t"], len(file.array("tokenizer.ggml.tokens") or ()))
        missing += [OUTPUT] if OUTPUT not in tensors else []
    if missing:
        raise damaged_head(path, f"the tensor {missing[0]} is missing")
    own = {EMBEDDINGS, OUTPUT} <= tensors.keys()
    if reads != target.width or max(layers) >= target.layers or not (own or width == target.width):
        raise foreign_head(
            path,
            f"it reads states of {reads} numbers from layers up to {max(layers)}, and "
            f"{target.path.name} has {target.width} in layers 0 to {target.layers - 1}",
        )
    return tuple(layers)


def require_sizes(file: GGUFFile, *names: str) -> dict[str, int]:
    """Sizes from the metadata. Raises ModelInvalid if one is less than 1."""
    sizes = {name: file.count(name) for name in names}
    lacking = [name for name, value in sizes.items() if value < 1]
    if lacking:
        raise damaged_head(file.path, f"its metadata lacks {file.architecture}.{lacking[0]}")
    return sizes


def _require_attention(file: GGUFFile, width: int) -> None:
    heads = file.count("attention.head_count")
    groups = file.own_integer("attention.head_count_kv") or heads
    lengths = {
        file.own_integer(f"attention.{name}_length") or width // max(1, heads)
        for name in ("key", "value")
    }
    rotated = file.own_integer("rope.dimension_count") or max(lengths)
    fit = heads > 0 < groups and heads % groups == 0 and len(lengths) == 1
    if not fit or rotated > min(lengths) or rotated % 2:
        raise damaged_head(file.path, "the sizes of its attention do not fit each other")


def d2t_ids(file: GGUFFile, d2t: TensorInfo, tokens: int) -> npt.NDArray[np.int64]:
    """The target's token of each row of a head's output. Raises ModelInvalid for unknown ones."""
    ids = np.empty(0, np.int64)
    if d2t.type == "I64":
        ids = np.fromfile(file.parts[d2t.part], "<i8", d2t.elements, offset=d2t.offset)
    if not len(ids) or ids.min() < 0 or ids.max() >= tokens:
        raise damaged_head(file.path, "d2t names tokens that its vocabulary does not have")
    return ids


def foreign_head(path: Path, why: str) -> DraftMismatch:
    return DraftMismatch(
        f"{path.name} is the head of another model: {why}. Give the head that was trained for this "
        "model, or leave it out with --draft none."
    )


def damaged_head(path: Path, why: str) -> ModelInvalid:
    return ModelInvalid(f"{path.name} cannot draft: {why}. Download it again, or convert it again.")
