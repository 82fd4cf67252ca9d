"""Trained heads (EAGLE-3, DFlash, DSpark): checks of what llama.cpp asserts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from localspec.errors import DraftMismatch, LocalspecError, ModelInvalid
from localspec.gguf.file import GGUFFile, TensorInfo
from localspec.gguf.mtp import is_mtp_alone
from localspec.gguf.reader import read_gguf

if TYPE_CHECKING:  # it loads llama.cpp
    from localspec.llama.model import Model

EAGLE3, MEDUSA, MTP, DFLASH = "eagle3", "medusa", "mtp", "dflash"
NOT_READ = {"gemma4-assistant": "Gemma 4 assistant"}
"""Heads that llama.cpp opens, and localspec does not support."""
USUAL_BLOCK = 16
"""Tokens of a block if a file names none."""
_NOT_MADE = {
    "selector_hidden.weight": "DFlash2",
    "hc_head_fn.weight": "DSpark for DeepSeek-V4",
}
"""Tensors of kinds that are not supported."""
_AGAIN = "Download it again, or convert it again."


@dataclass(frozen=True, slots=True)
class TappingHead:
    """A head that reads inputs of its target's layers, in the order of `layers`.

    `target_width`: of the target's hidden states; `width`: of its own. `embeddings`, `output`:
    whether it has such a matrix; else it uses the target's.
    """

    path: Path
    layers: tuple[int, ...]
    target_width: int
    width: int
    embeddings: bool
    output: bool

    def require_fits(self, target: Model) -> None:
        """A DraftMismatch if it was made for another target."""
        why = None
        if self.target_width != target.width:
            why = f"hidden states of {self.target_width} numbers, and those of"
            why += f" {target.path.name} have {target.width}"
        elif max(self.layers) >= target.layers:
            why = f"the input of layer {max(self.layers)}, and {target.path.name} has layers 0 to"
            why += f" {target.layers - 1}"
        elif self.width != target.width and not (self.embeddings and self.output):
            why = f"embeddings and output of {self.width} numbers, which it lacks, and"
            why += f" those of {target.path.name} have {target.width}"
        if why is not None:
            raise DraftMismatch(
                f"{self.path.name} is the head of another model: it reads {why}. Give the head "
                "that was trained for this model, or leave it out with --draft none."
            )


def head_kind(path: Path) -> str | None:
    """EAGLE3, MEDUSA, MTP, DFLASH or one of NOT_READ; None for other and unreadable files."""
    try:
        file = read_gguf(path, tensors=False)
        if file.architecture in (EAGLE3, MEDUSA, DFLASH, *NOT_READ):
            return file.architecture
        if file.own_integer("nextn_predict_layers") and is_mtp_alone(read_gguf(path)):
            return MTP
    except LocalspecError:
        pass
    return None


def not_read(path: Path, kind: str) -> ModelInvalid:
    return ModelInvalid(
        f"{path.name} is a {NOT_READ[kind]} head (architecture {kind}), which localspec does not "
        "support, though llama.cpp can compute it. Choose an EAGLE-3 head, a model with MTP "
        "layers, or a draft model, or leave it out with --draft none."
    )


def read_eagle(path: Path) -> TappingHead:
    """Read and check an EAGLE-3 head; raises ModelNotFound, or ModelInvalid if llama.cpp cannot
    compute it."""
    file = read_gguf(path)
    shapes = {tensor.name: tensor for tensor in file.tensors}
    numbers = target_layers(file)
    if len(numbers) != 3:
        raise damaged(path, f"it names {len(numbers)} layers of its target instead of three")
    sizes = required(
        file, "block_count", "embedding_length", "feed_forward_length", "target_hidden_size"
    )
    if sizes["block_count"] != 1:
        raise damaged(path, f"it has {sizes['block_count']} layers of its own instead of one")
    require_attention(file, sizes["embedding_length"])
    for name in ("fc.weight", "output_norm.weight", "blk.0.attn_q.weight", "blk.0.ffn_down.weight"):
        if name not in shapes:
            raise damaged(path, f"the tensor {name} is missing")
    require_map(file, shapes)
    return TappingHead(
        path,
        numbers,
        sizes["target_hidden_size"],
        sizes["embedding_length"],
        "token_embd.weight" in shapes,
        "output.weight" in shapes,
    )


@dataclass(frozen=True, slots=True)
class BlockHeadFile(TappingHead):
    """`source`: "dflash", or "dspark" with a Markov chain. The others: see
    `localspec.llama.block_cache.BlockShape`."""

    source: str
    block: int
    mask: int
    anchored: bool
    causal: bool


def read_block_head(path: Path) -> BlockHeadFile:
    """Read and check a head; raises ModelNotFound, or ModelInvalid if llama.cpp cannot compute
    it."""
    file = read_gguf(path)
    shapes = {tensor.name: tensor for tensor in file.tensors}
    for tensor, kind in _NOT_MADE.items():
        if tensor in shapes:
            raise ModelInvalid(
                f"{path.name} is a {kind} head, which localspec does not support, though llama.cpp "
                "can compute it. Choose a DFlash, DSpark or EAGLE-3 head or a draft "
                "model, or leave it out with --draft none."
            )
    layers = target_layers(file)
    if not layers:
        raise damaged(path, "it names no layers of its target")
    sizes = required(file, "embedding_length", "feed_forward_length", "block_count")
    require_attention(file, sizes["embedding_length"])
    require_map(file, shapes)
    chained = "markov_w1.weight" in shapes
    block = file.own_integer("block_size")
    if chained and block is None:
        raise damaged(path, f"its metadata lacks {DFLASH}.block_size")
    block = USUAL_BLOCK if block is None else block
    if block < (1 if chained else 2):
        raise damaged(path, f"its blocks are of {block} tokens")
    tokens = file.array("tokenizer.ggml.tokens")
    mask = file.integer("tokenizer.ggml.mask_token_id")
    if mask is None or not 0 <= mask < len(tokens or ()):
        raise damaged(path, "its vocabulary has no token that masks")
    return BlockHeadFile(
        path,
        layers,
        sizes["embedding_length"],
        sizes["embedding_length"],
        "token_embd.weight" in shapes,
        "output.weight" in shapes or "token_embd.weight" in shapes,
        source="dspark" if chained else "dflash",
        block=block,
        mask=mask,
        anchored=chained and file.own("sample_from_anchor") in (None, True),
        causal=file.own("attention.causal") is True,
    )


def target_layers(file: GGUFFile) -> tuple[int, ...]:
    """The target's layers that a head names; empty if one is impossible."""
    layers = file.array(f"{file.architecture}.target_layers")
    numbers = [] if layers is None or layers.strings else [int(layer) for layer in layers]
    return tuple(numbers) if min(numbers, default=-1) >= 0 else ()


def required(file: GGUFFile, *names: str) -> dict[str, int]:
    """Metadata that has to be 1 or more; else a ModelInvalid."""
    sizes = {name: file.own_integer(name) or 0 for name in names}
    lacking = [name for name, value in sizes.items() if value < 1]
    if lacking:
        raise damaged(file.path, f"its metadata lacks {file.architecture}.{lacking[0]}")
    return sizes


def require_attention(file: GGUFFile, width: int) -> None:
    """A ModelInvalid if the sizes of a head's attention do not fit."""
    heads = file.own_integer("attention.head_count") or 0
    groups = file.own_integer("attention.head_count_kv") or heads
    if heads < 1 or groups < 1 or heads % groups:
        raise damaged(file.path, f"it has {heads} attention heads and {groups} for keys and values")
    lengths = {
        file.own_integer(f"attention.{name}_length") or width // heads for name in ("key", "value")
    }
    rotated = file.own_integer("rope.dimension_count") or max(lengths)
    if len(lengths) != 1 or rotated > min(lengths) or rotated % 2:
        raise damaged(file.path, "the sizes of its attention do not fit each other")


def require_map(file: GGUFFile, tensors: Mapping[str, TensorInfo]) -> None:
    """A ModelInvalid if a map of some tokens (d2t) is wrong."""
    if "d2t" not in tensors:
        return
    tokens = file.array("tokenizer.ggml.tokens")
    d2t_ids(file, tensors["d2t"], len(tokens or ()))
    if "output.weight" not in tensors:
        raise damaged(file.path, "it has d2t, and no output matrix of its own")


def d2t_ids(file: GGUFFile, d2t: TensorInfo, tokens: int) -> npt.NDArray[np.int64]:
    """The target's token of each row of a head's output; a ModelInvalid for unknown ones."""
    ids = np.empty(0, np.int64)
    if d2t.type == "I64":
        ids = np.fromfile(file.parts[d2t.part], "<i8", d2t.elements, offset=d2t.offset)
    if not len(ids) or ids.min() < 0 or ids.max() >= tokens:
        raise damaged(file.path, "d2t names tokens that its vocabulary does not have")
    return ids


def damaged(path: Path, why: str) -> ModelInvalid:
    return ModelInvalid(f"{path.name} cannot draft: {why}. {_AGAIN}")
