"""Opens trained heads. Loads llama.cpp."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from localspec.decoding.interfaces import NEXTN
from localspec.drafters.medusa import Medusa, MedusaCache, MedusaWeights
from localspec.drafters.trained_head import BlockHead, EagleHead, TrainedHead
from localspec.errors import DraftMismatch, UsageError
from localspec.gguf.heads import (
    EAGLE3,
    MEDUSA,
    MTP,
    NOT_READ,
    BlockHeadFile,
    TappingHead,
    head_kind,
    not_read,
    read_block_head,
    read_eagle,
)
from localspec.gguf.medusa import read_medusa
from localspec.gguf.mtp import read_mtp
from localspec.gguf.reader import read_gguf
from localspec.gguf.vocabularies import VocabularyFacts, require_shared
from localspec.llama.block_cache import BlockCache, BlockShape
from localspec.llama.context import Context
from localspec.llama.eagle_cache import EagleCache, MtpCache
from localspec.llama.hidden import require
from localspec.llama.model import Model
from localspec.llama.options import ModelOptions
from localspec.llama.shared_context import SharedContext

_Target = Context | SharedContext
_Build = Callable[[Any], TrainedHead]
"""Makes a head over weights, with a cache for one answer."""


class OpenHead:
    """A head's weights `model`, and `each` answer's head over them."""

    def __init__(self, model: Any, target: _Target, build: _Build, answers: int) -> None:
        self.model, self._target = model, target
        self.each: list[TrainedHead] = []
        try:
            for _ in range(answers):
                self.each.append(build(model))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for head in self.each:
            cache: Any = head.cache
            cache.close()
        if self.model is not self._target.model:
            self.model.close()


def open_head(
    path: Path,
    target: _Target,
    options: ModelOptions,
    progress: Callable[[float], None] | None,
) -> OpenHead:
    """A head, with caches as long as the target's.

    Raises:
        DraftMismatch: it was made for another target, or this one provides no hidden states.
        UsageError: an adapter for it.
        ModelInvalid, ModelNotFound, NativeError: it cannot be opened.
    """
    kind = head_kind(path) or EAGLE3
    if kind in NOT_READ:
        raise not_read(path, kind)
    if options.rpc:
        raise DraftMismatch(
            f"{path.name} is a trained head, which reads the model's hidden states, and with --rpc "
            "these are on other machines. Leave out --rpc, or choose a draft model."
        )
    if options.draft_adapters:
        raise UsageError(
            f"{path.name} is a trained head, which takes no adapter. Leave out --lora-draft."
        )
    if kind == MEDUSA:
        return _open_medusa(path, target, options)
    room, borrows = options.for_draft(target.capacity), False
    if kind == MTP:
        mtp = read_mtp(read_gguf(path))
        assert mtp is not None, "it was seen to have them"
        mtp.require_fits(read_gguf(target.model.path))
        require(target.model, (NEXTN,))
        build = _mtp(target, room)
    else:
        head = read_eagle(path) if kind == EAGLE3 else read_block_head(path)
        require(target.model, head.layers)
        head.require_fits(target.model)
        borrows = not head.output
        build = _tapping(head, target, room)
    require_shared(target.model.path, path)
    size, own = (VocabularyFacts(read_gguf(one)).size for one in (target.model.path, path))
    if borrows and size != own:
        raise DraftMismatch(
            f"{path.name} is the head of another model: it has a vocabulary of {own} tokens, and "
            f"{target.model.path.name} one of {size}. Give the head that was trained for this "
            "model."
        )
    model = Model(path, room, progress=progress, mtp=kind == MTP)
    return OpenHead(model, target, build, options.parallel)


def open_own_mtp(target: _Target, options: ModelOptions) -> OpenHead:
    """The MTP layers of a target that was opened with them."""
    build = _mtp(target, options.for_draft(target.capacity))
    return OpenHead(target.model, target, build, options.parallel)


def _tapping(head: TappingHead, target: _Target, room: ModelOptions) -> _Build:
    size = target.model.vocabulary.size
    if not isinstance(head, BlockHeadFile):
        return lambda model: EagleHead(
            EagleCache(model, target.handle, room), head.layers, size, "eagle"
        )
    shape = BlockShape(head.block, head.mask, head.anchored, head.causal)
    return lambda model: BlockHead(
        BlockCache(model, target.handle, room, shape), head.layers, size, head.source
    )


def _mtp(target: _Target, room: ModelOptions) -> _Build:
    size = target.model.vocabulary.size
    return lambda model: EagleHead(MtpCache(model, target.handle, room), (NEXTN,), size, "mtp")


def _open_medusa(path: Path, target: _Target, options: ModelOptions) -> OpenHead:
    file, vocabulary = read_medusa(path), target.model.vocabulary
    layers, size = target.model.layers, vocabulary.size
    require(target.model, (layers,))
    file.require_fits(target.model, size, vocabulary.fingerprint())
    if options.parallel > 1:
        raise DraftMismatch(
            f"{path.name} has Medusa heads, which draft for one answer at a time: of passes that "
            "answers share, llama.cpp gives no last hidden states. Open the model with "
            "parallel=1, or choose another drafter."
        )
    heads = range(file.heads)
    # One matrix may serve all of them.
    outputs = {file.output_name(head): head for head in heads}
    matrices = {name: file.output(head) for name, head in outputs.items()}
    weights = MedusaWeights(
        path,
        file.file.text("general.name") or path.stem,
        file.size,
        [[file.block(head, number) for number in range(file.blocks)] for head in heads],
        [matrices[file.output_name(head)] for head in heads],
        file.ids(),
    )
    return OpenHead(
        weights,
        target,
        lambda model: Medusa(MedusaCache(model, size, target.capacity), layers, size),
        1,
    )
