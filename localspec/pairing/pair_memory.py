"""Whether a pair fits into this machine's memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

import psutil

from localspec.gguf.dimensions import NO_EXTRAS, Extras, Use, default_context, n_layers
from localspec.gguf.file import GGUFFile
from localspec.pairing.memory import SPARE, MemoryNeed, most_layers, place


@dataclass(frozen=True, slots=True, kw_only=True)
class PairUse:
    """How a pair is to be opened.

    Attributes:
        context: tokens; None for what the target was trained on.
        kv_type: element type of its caches.
        accelerated: whether the models run on a GPU.
        kernels: whether localspec's CPU kernels may be used.
        device_free: bytes that the GPU has left in memory of its own.
        through_text: whether a draft of another vocabulary may be used.
        remote: whether the target's layers are on other machines, and the draft here.
        extras: adapters and a projector that are opened with them.
    """

    context: int | None = None
    kv_type: str = "f16"
    accelerated: bool = False
    kernels: bool = True
    device_free: int = 0
    through_text: bool = True
    remote: bool = False
    extras: Extras = NO_EXTRAS


ANY_USE = PairUse()


def memory_of_pair(
    target: GGUFFile, draft: GGUFFile, use: PairUse
) -> tuple[MemoryNeed, MemoryNeed]:
    """In main memory; the draft's cache is as long as the target's.

    With `remote`, only the target's token embeddings stay.
    """
    tokens = default_context(target, use.context or 0)
    mine = Use(context=tokens, kv_type_k=use.kv_type, kv_type_v=use.kv_type, extras=use.extras)
    layers = (-1 if use.remote else 0), 0
    if use.device_free and not use.remote:
        fit = layers_that_fit(target, draft, mine, use.device_free)
        layers = fit.target, fit.draft
    return place(target, mine, layers[0]).host, place(draft, _drafts(mine), layers[1]).host


def _drafts(use: Use) -> Use:
    return replace(use, extras=use.extras.of_draft())


def available() -> tuple[int, int]:
    """Bytes of main memory that are free or can be freed, and in all."""
    memory = psutil.virtual_memory()
    return int(memory.available), int(memory.total)


@dataclass(frozen=True, slots=True)
class Offload:
    """How much of a pair a device takes.

    Attributes:
        target, draft: for `--gpu-layers` and `--draft-gpu-layers`, -1 for all.
        need: bytes there.
    """

    target: int
    draft: int
    all_fit: bool
    need: int


SMALL = 0.2
"""A draft below this share of a device's memory goes there as a whole: it runs several passes for
each of the target's.
"""


def layers_that_fit(target: GGUFFile, draft: GGUFFile | None, use: Use, free: int) -> Offload:
    """Distribute a pair between main memory and one device with so many bytes left.

    `use` is of the target; its extras are of both.
    """
    use = replace(use, context=default_context(target, use.context))
    drafts = _drafts(use)
    draft_need = place(draft, drafts, -1).device.total if draft is not None else 0
    whole = place(target, use, -1).device.total
    if whole + draft_need <= free * (1.0 - SPARE):
        return Offload(-1, -1, True, whole + draft_need)
    draft_layers = 0
    if draft is not None and draft_need <= free * SMALL:
        draft_layers, free = -1, free - draft_need
    else:
        draft_need = 0
    placed = most_layers(target, use, free)
    need = placed.device.total
    if draft is not None and draft_layers == 0 and placed.layers > n_layers(target):
        rest = most_layers(draft, drafts, free - need)
        draft_layers, draft_need = rest.layers, rest.device.total
    return Offload(placed.layers, draft_layers, False, need + draft_need)
