"""Whether a pair fits into this machine's memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

import psutil

from localspec.gguf.extras import NO_EXTRAS, Extras
from localspec.gguf.file import GGUFFile
from localspec.pairing.memory import (
    SPARE,
    MemoryNeed,
    Use,
    default_context,
    most_layers,
    n_layers,
    place,
)


def memory_of_pair(
    target: GGUFFile,
    draft: GGUFFile,
    context: int | None,
    kv_type: str,
    device_free: int = 0,
    *,
    remote: bool = False,
    extras: Extras = NO_EXTRAS,
) -> tuple[MemoryNeed, MemoryNeed]:
    """What both take in main memory, the draft's cache as long as the target's.

    Args:
        device_free: bytes that devices have left in memory of their own; they hold what they can.
        remote: whether all layers of the target are on RPC servers; the token embeddings stay.
        extras: what is opened beside the weights of both.
    """
    tokens = default_context(target, context or 0)
    use = Use(context=tokens, kv_type_k=kv_type, kv_type_v=kv_type, extras=extras)
    layers = (-1 if remote else 0), 0
    if device_free and not remote:
        fit = layers_that_fit(target, draft, use, device_free)
        layers = fit.target, fit.draft
    return place(target, use, layers[0]).host, place(draft, _drafts(use), layers[1]).host


def _drafts(use: Use) -> Use:
    """That of the draft model beside a target's."""
    return replace(use, extras=use.extras.of_draft())


def available() -> tuple[int, int]:
    """Bytes of main memory that are free or can be freed, and in all."""
    memory = psutil.virtual_memory()
    return int(memory.available), int(memory.total)


@dataclass(frozen=True, slots=True)
class Offload:
    """How much of a pair a device takes.

    Attributes:
        target, draft: what to give `--gpu-layers` and `--draft-gpu-layers`, -1 for all.
        all_fit: whether everything is on the device.
        need: bytes there.
    """

    target: int
    draft: int
    all_fit: bool
    need: int


SMALL = 0.2
"""A draft that takes no more than this share of a device's memory goes there as a whole: it runs
several passes for each of the target's."""


def layers_that_fit(target: GGUFFile, draft: GGUFFile | None, use: Use, free: int) -> Offload:
    """Distribute a pair between main memory and one device.

    Args:
        use: of the target; the draft's cache is as long. Its extras are of both.
        free: bytes that the device has left.
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
