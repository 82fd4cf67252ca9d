"""Opening trained heads; the file layout of Medusa heads is in dev/heads.md. Loads llama.cpp."""

from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from localspec.decoding.interfaces import NEXTN
from localspec.drafters.medusa import Matrix, Medusa, MedusaCache, MedusaWeights
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
    d2t_ids,
    damaged_head,
    foreign_head,
    require_sizes,
    target_layers,
    unsupported_head,
)
from localspec.gguf.mtp import require_mtp
from localspec.gguf.reader import read_gguf
from localspec.gguf.vocabularies import VocabularyFacts, require_shared
from localspec.llama.head_caches import BlockCache, BlockShape, EagleCache, HeadCache
from localspec.llama.hidden import require
from localspec.llama.model import Model
from localspec.llama.options import ModelOptions
from localspec.loading.caches import Cache

_USUAL_BLOCK = 16
"""Tokens of a block if a file names none."""
_MOST_MEDUSA_HEADS = 32
_MEDUSA_TYPES = {"F32": "<f4", "F16": "<f2"}
_HeadCache = TypeVar("_HeadCache", bound=HeadCache)


def open_head(
    kind: str,
    path: Path,
    target: Cache,
    options: ModelOptions,
    progress: Callable[[float], None] | None,
    opened: ExitStack,
) -> list[TrainedHead]:
    """Open a head per slot, with caches as long as the target's, which `opened` closes. `kind`:
    see `localspec.gguf.heads.head_kind`. Raises DraftMismatch if it was made for another target, or
    this one provides no hidden states, UsageError for an adapter, and ModelInvalid, ModelNotFound
    or NativeError if it cannot be opened."""
    if kind in UNSUPPORTED_HEADS:
        raise unsupported_head(path, f"{UNSUPPORTED_HEADS[kind]} (architecture {kind})")
    if options.mmproj is not None:
        raise DraftMismatch(
            f"{path.name} is a trained head, which drafts only for text. Leave out --mmproj, or "
            "choose another draft."
        )
    if options.rpc:
        raise DraftMismatch(
            f"{path.name} is a trained head, which reads the model's hidden states, and with --rpc "
            "these are on other machines. Leave out --rpc, or choose a draft model."
        )
    if options.draft_adapters:
        raise UsageError(
            f"{path.name} is a trained head and cannot have an adapter. Leave out --lora-draft."
        )
    file, mine, size = read_gguf(path), target.model, target.model.vocabulary.size
    if kind == MEDUSA:
        weights = _read_medusa(file, mine, options)
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
    own_output = OUTPUT in file.by_name or (kind == DFLASH and EMBEDDINGS in file.by_name)
    if kind != MTP and not own_output and own != size:  # uses the target's output matrix
        why = f"it has a vocabulary of {own} tokens, and {mine.path.name} one of {size}"
        raise foreign_head(path, why)
    room = options.for_draft(target.capacity)
    model = opened.enter_context(Model(path, room, progress=progress, mtp=kind == MTP))
    if kind == MTP:
        return open_mtp(model, target, options, opened)

    if shape is None:
        eagles = _each(options, lambda: EagleCache(model, target.handle, room), opened)
        return [EagleHead(cache, layers, size, "eagle") for cache in eagles]
    name = "dspark" if _has_chain(file) else "dflash"
    blocks = _each(options, lambda: BlockCache(model, target.handle, room, shape), opened)
    return [BlockHead(cache, layers, size, name) for cache in blocks]


def open_mtp(
    model: Model, target: Cache, options: ModelOptions, opened: ExitStack
) -> list[TrainedHead]:
    """Use the MTP layers of a model that was opened with them, the target itself or a file for it;
    otherwise as `open_head`."""
    room, size = options.for_draft(target.capacity), target.model.vocabulary.size
    caches = _each(options, lambda: EagleCache(model, target.handle, room, mtp=True), opened)
    return [EagleHead(cache, (NEXTN,), size, "mtp") for cache in caches]


def _each(
    options: ModelOptions, make: Callable[[], _HeadCache], opened: ExitStack
) -> list[_HeadCache]:
    return [opened.enter_context(closing(make())) for _ in range(options.parallel)]


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
        raise damaged_head(file.path, f"its block size is {block}")
    mask = file.integer("tokenizer.ggml.mask_token_id")
    if mask is None or not 0 <= mask < VocabularyFacts(file).size:
        raise damaged_head(file.path, "its vocabulary has no mask token")
    return BlockShape(
        block,
        mask,
        anchored=chained and file.own("sample_from_anchor") in (None, True),
        causal=file.own("attention.causal") is True,
    )


def _read_medusa(file: GGUFFile, target: Model, options: ModelOptions) -> MedusaWeights:
    """Read the heads. Raises ModelInvalid if the layout differs from dev/heads.md, DraftMismatch
    for another target, or several answers."""
    path, tensors = file.path, file.by_name
    sizes = require_sizes(file, "embedding_length", "vocab_size", "head_count")
    width, tokens, count = sizes.values()
    blocks = file.own_integer("block_count")
    if blocks is None or blocks < 0 or count > _MOST_MEDUSA_HEADS or len(file.parts) > 1:
        raise damaged_head(path, "its medusa.head_count or medusa.block_count is invalid")
    ids = d2t_ids(file, tensors["d2t"], tokens) if "d2t" in tensors else None
    require(target, (target.layers,))
    mine, known = target.vocabulary, file.text("medusa.target_vocabulary")
    fits = (width, tokens) == (target.width, mine.size)
    if not fits or (known and known != mine.fingerprint()):
        why = f"its states or its vocabulary differ from those of {target.path.name}"
        raise foreign_head(path, why)
    if options.parallel > 1:
        raise DraftMismatch(
            f"{path.name} has Medusa heads, which draft for one answer at a time: llama.cpp "
            "provides no final hidden states of shared passes. Leave out --parallel "
            "(parallel=1), or choose another drafter."
        )

    def matrix(name: str, *shape: int) -> Matrix:
        tensor = tensors.get(name)
        if tensor is None or tensor.shape != shape[::-1] or tensor.type not in _MEDUSA_TYPES:
            raise damaged_head(path, f"the tensor {name} is missing, or of another shape or type")
        kind: Any = _MEDUSA_TYPES[tensor.type]
        found = np.fromfile(path, kind, tensor.elements, offset=tensor.offset)
        return np.ascontiguousarray(found.reshape(shape), np.float32)

    def block(name: str) -> tuple[Matrix, Matrix | None]:
        weight, bias = matrix(f"{name}.weight", width, width), f"{name}.bias"
        return weight, matrix(bias, width) if bias in tensors else None

    own = [f"medusa.{head}.output.weight" for head in range(count)]
    names = [name if name in tensors else "medusa.output.weight" for name in own]
    rows = tokens if ids is None else len(ids)
    # One matrix may be shared by all heads.
    outputs = {name: matrix(name, rows, width) for name in dict.fromkeys(names)}
    return MedusaWeights(
        path,
        file.text("general.name") or path.stem,
        file.weight_bytes,
        [[block(f"medusa.{head}.blk.{n}") for n in range(blocks)] for head in range(count)],
        [outputs[name] for name in names],
        ids,
    )
