"""How many tokens a pass may have and still round as passes over one token do.

Greedy answers part from plain decoding's where a pass over several tokens runs through other
kernels than one over a single token. With an F16 cache and from 512 cells on, llama.cpp's attention
on a processor splits a single token's keys among the threads and sums 16-bit numbers, and does
neither for several tokens (`ggml_compute_forward_flash_attn_ext_f16`, ggml-cpu/ops.cpp); with keys
and values of two types it sums 32-bit numbers in one order always, which is what
`ModelOptions.exact` asks for. What is left are the kernels of the weights: some types have others
for four rows or more. That is tried here, once for each model and machine.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import numpy as np

from localspec import paths
from localspec.files import write_atomically
from localspec.identity import fingerprint

if TYPE_CHECKING:
    from localspec.llama.context import Context

MOST = 17
"""Tokens of the largest pass that is tried; drafts that pay are hardly ever longer."""
_BEHIND = 300
"""Tokens in the cache meanwhile: llama.cpp takes 512 cells then, where its kernels for long texts
begin."""

logger = logging.getLogger("localspec.loading.same_bits")


def keep_same_bits(context: Context, identity: dict[str, Any]) -> None:
    """Let a target verify only drafts whose passes give the bits of single-token passes.

    Trees are left out: one that was committed leaves cells in another order, in which sums round
    otherwise.

    Args:
        context: of the target, empty.
        identity: everything that decides about kernels, see `cost_identity`.
    """
    store = paths.cache_folder() / "same-bits" / f"{fingerprint(identity)[:24]}.json"
    largest = 0
    try:
        known = json.loads(store.read_text(encoding="utf-8"))
        if known["identity"] == identity:
            largest = int(known["largest"])
    except (OSError, ValueError, KeyError, TypeError):
        pass  # it is tried again
    if largest < 1:
        largest = largest_equal_pass(context)
        try:
            write_atomically(store, json.dumps({"identity": identity, "largest": largest}))
        except OSError as error:
            logger.info("could not keep which passes give the same bits: %s", error)
    context.max_leaves = 1
    context.max_draft = min(context.max_draft, largest - 1)


def largest_equal_pass(context: Context) -> int:
    """The number of tokens up to which every pass gives the rows of single-token passes, bit for
    bit; 1 where not even two do. The context is empty before and after.
    """
    if context.recurrent:  # cutting it back runs passes of its own
        return 1
    behind = max(1, min(_BEHIND, context.capacity - MOST))
    most = min(MOST, context.capacity - behind)
    text = context.filler(behind + most)
    context.clear()
    context.extend(text[:behind])
    single = [np.array(context.extend([token])[-1]) for token in text[behind:]]
    largest = 1
    for size in range(2, most + 1):
        context.truncate(behind)
        if not np.array_equal(context.extend(text[behind : behind + size], size), single[:size]):
            break
        largest = size
    context.clear()
    return largest
