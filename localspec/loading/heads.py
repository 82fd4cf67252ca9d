"""Opening trained heads. Loads llama.cpp."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from localspec.decoding.interfaces import NEXTN
from localspec.drafters.medusa import Medusa, MedusaCache
from localspec.drafters.trained_head import BlockHead, EagleHead, TrainedHead
from localspec.errors import DraftMismatch, UsageError
from localspec.gguf.file import GGUFFile
from localspec.gguf.heads import (
    DFLASH,
    EMBEDDINGS,
    MEDUSA,
    MTP,
    OUTPUT,
    UNSUPPORTED_HEADS,
    damaged_head,
    target_layers,
    unsupported_head,
)
from localspec.gguf.mtp import require_mtp
from localspec.gguf.reader import read_gguf
from localspec.gguf.vocabularies import VocabularyFacts, require_shared
from localspec.llama.block_cache import BlockCache, BlockShape
from localspec.llama.context import Context
from localspec.llama.eagle_cache import EagleCache, MtpCache
from localspec.llama.hidden import require
from localspec.llama.model import Model
from localspec.llama.options import ModelOptions
from localspec.llama.shared_context import SharedContext
from localspec.loading.medusa import read_medusa

_USUAL_BLOCK = 16
"""Tokens of a block if a file names none."""
_Target = Context | SharedContext


def open_head(
    kind: str,
    path: Path,
    target: _Target,
    options: ModelOptions,
    progress: Callable[[float], None] | None,
    opened: ExitStack,
) -> list[TrainedHead]:
    """Open a head per slot, with caches as long as the target's, which `opened` closes. `kind`:
    see `localspec.gguf.heads.head_kind`.

    Raises:
        DraftMismatch: it was made for another target, or this one provides no hidden states.
        UsageError: an adapter for it.
        ModelInvalid, ModelNotFound, NativeError: it cannot be opened.
    """
    if kind in UNSUPPORTED_HEADS:
        raise unsupported_head(path, kind)
    if options.rpc:
        raise DraftMismatch(
            f"{path.name} is a trained head, which reads the model's hidden states, and with --rpc "
            "these are on other machines. Leave out --rpc, or choose a draft model."
        )
    if options.draft_adapters:
        raise UsageError(
            f"{path.name} is a trained head, which takes no adapter. Leave out --lora-draft."
        )
    file, mine, size = read_gguf(path), target.model, target.model.vocabulary.size
    if kind == MEDUSA:
        weights = read_medusa(file, mine, options)
        return [Medusa(MedusaCache(weights, size, target.capacity), mine.layers, size)]
    if kind == MTP:
        layers: tuple[int, ...] = (NEXTN,)
        require_mtp(file, read_gguf(mine.path))
    else:
        layers = target_layers(file, mine)
    require(mine, layers)
    shape = _block_shape(file) if kind == DFLASH else None
    require_shared(mine.path, path)
    own = VocabularyFacts(file).size
    if kind != MTP and not _has_output(file) and own != size:
        raise DraftMismatch(
            f"{path.name} is the head of another model: it has a vocabulary of {own} tokens, and "
            f"{mine.path.name} one of {size}. Give the head that was trained for this model."
        )
    room = options.for_draft(target.capacity)
    model = opened.enter_context(Model(path, room, progress=progress, mtp=kind == MTP))
    if kind == MTP:
        return _mtp(model, target, options, opened)

    def head() -> TrainedHead:
        if shape is None:
            return EagleHead(EagleCache(model, target.handle, room), layers, size, "eagle")
        cache = BlockCache(model, target.handle, room, shape)
        return BlockHead(cache, layers, size, "dspark" if _has_chain(file) else "dflash")

    return _each(options, head, opened)


def open_own_mtp(target: _Target, options: ModelOptions, opened: ExitStack) -> list[TrainedHead]:
    """Use the MTP layers of a target that was opened with them; otherwise as `open_head`."""
    return _mtp(target.model, target, options, opened)


def _mtp(
    model: Model, target: _Target, options: ModelOptions, opened: ExitStack
) -> list[TrainedHead]:
    room, size = options.for_draft(target.capacity), target.model.vocabulary.size
    return _each(
        options,
        lambda: EagleHead(MtpCache(model, target.handle, room), (NEXTN,), size, "mtp"),
        opened,
    )


def _each(
    options: ModelOptions, head: Callable[[], TrainedHead], opened: ExitStack
) -> list[TrainedHead]:
    heads = []
    for _ in range(options.parallel):
        heads.append(head())
        cache: Any = heads[-1].cache
        opened.enter_context(closing(cache))
    return heads


def _has_output(file: GGUFFile) -> bool:
    """Whether a head has an output matrix; else it uses the target's."""
    tensors = file.by_name
    return OUTPUT in tensors or (file.architecture == DFLASH and EMBEDDINGS in tensors)


def _has_chain(file: GGUFFile) -> bool:
    """Whether a block head is DSpark's, with a Markov chain."""
    return "markov_w1.weight" in file.by_name


def _block_shape(file: GGUFFile) -> BlockShape:
    """Raise ModelInvalid if llama.cpp cannot compute such blocks."""
    chained, block = _has_chain(file), file.own_integer("block_size")
    if chained and block is None:
        raise damaged_head(file.path, f"its metadata lacks {DFLASH}.block_size")
    block = _USUAL_BLOCK if block is None else block
    if block < (1 if chained else 2):
        raise damaged_head(file.path, f"its blocks are of {block} tokens")
    mask = file.integer("tokenizer.ggml.mask_token_id")
    if mask is None or not 0 <= mask < VocabularyFacts(file).size:
        raise damaged_head(file.path, "its vocabulary has no token that masks")
    return BlockShape(
        block,
        mask,
        anchored=chained and file.own("sample_from_anchor") in (None, True),
        causal=file.own("attention.causal") is True,
    )
