"""Block diffusion heads (DFlash, DSpark): checks of what llama.cpp asserts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from localspec.errors import ModelInvalid
from localspec.gguf.heads import (
    DFLASH,
    TappingHead,
    damaged,
    require_attention,
    require_map,
    required,
    target_layers,
)
from localspec.gguf.reader import read_gguf

USUAL_BLOCK = 16
"""Tokens of a block if a file names none."""
_NOT_MADE = {
    "selector_hidden.weight": "DFlash2",
    "hc_head_fn.weight": "DSpark for DeepSeek-V4",
}
"""Tensors of kinds that are not supported."""


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
