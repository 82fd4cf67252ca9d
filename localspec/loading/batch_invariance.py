"""The size up to which passes round like single-token passes, tested once per model and machine.

localspec's kernels are batch-invariant; operations they leave to llama.cpp are counted. From 512
cells on, stock CPU attention with an F16 cache splits its work differently for a single token
(`ggml_compute_forward_flash_attn_ext_f16`), which two KV types avoid
(`localspec.llama.native_context.kv_types`). Some weight types use other kernels from 4 rows on.
"""

from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np

from localspec.decoding.tree import ROOT, TokenTree
from localspec.llama import kernels
from localspec.llama.context import Context
from localspec.llama.model import Model
from localspec.llama.options import ModelOptions
from localspec.llama.outcomes import Outcomes
from localspec.loading.caches import open_context

MOST = 17
"""Tokens of the largest pass tested; useful drafts are rarely longer."""
_CELLS = 512
_BEHIND = 300
"""Tokens in the cache during the test: llama.cpp then uses 512 cells, where its kernels for long
texts begin."""

_BRANCH = 4
"""Tokens of a tree that are kept per pass."""

_outcomes = Outcomes("same-bits", 100)


def max_equal_pass(model: Model, options: ModelOptions, identity: dict[str, Any]) -> int | None:
    """The size up to which every pass of a target gives the bits of single-token passes; None if
    all do, trees and shared passes included."""
    context = min(options.context or model.trained_context, _CELLS)
    facts = identity | {"context": context}
    known = _outcomes.get(facts) or {}
    if not all(isinstance(known.get(name), int) for name in ("largest", "left")):
        with closing(open_context(model, replace(options, context=context, parallel=1))) as tried:
            before = kernels.left_count()
            largest = find_largest_equal_pass(tried)
            if largest > 1 and model.kernels.in_use and not rows_equal_after_trees(tried):
                largest = 1
            left = kernels.left_count() - before
        known = {"largest": largest, "left": left}
        _outcomes.store(facts, known)
    largest = int(known["largest"])
    # A recurrent memory is truncated by further passes, which are not tested.
    ours = model.kernels.in_use and not model.offloaded and not model.recurrent
    return None if ours and known["left"] == 0 and largest >= min(MOST, context - 1) else largest


def batch_invariant(model: Model, options: ModelOptions, identity: dict[str, Any]) -> bool:
    """Whether a row has the same bits whatever else is in its pass, and however the text was
    prefilled."""
    if options.rpc or not model.kernels.in_use or model.offloaded or model.recurrent:
        return False
    return max_equal_pass(model, options, identity) is None


def rows_equal_after_trees(context: Context) -> bool:
    """Whether rows after a kept second branch equal those of single-token passes. The context is
    empty before and after."""
    behind = max(1, min(_BEHIND, context.capacity - 3 * _BRANCH))  # the last has two branches
    text = context.filler(behind + 2 * _BRANCH)
    context.clear()
    context.extend(text[:behind])
    single = [np.array(context.extend([token])[-1]) for token in text[behind:]]
    context.truncate(behind)
    found = []
    for start in range(behind, len(text), _BRANCH):
        pending, *right = text[start : start + _BRANCH]
        tree = TokenTree()
        node = ROOT
        for token in right:
            node = tree.add(token + 1, node, "")
        path = [tree.add(right[0], ROOT, "")]
        for token in right[1:]:
            path.append(tree.add(token, path[-1], ""))
        rows = context.branch([pending], tree)
        found += [np.array(rows[row]) for row in (0, *(1 + node for node in path))]
        context.commit(tree, path)
    context.clear()
    return np.array_equal(found, single)


def find_largest_equal_pass(context: Context) -> int:
    """The size up to which every pass gives the bits of single-token passes. The context is empty
    before and after."""
    if context.recurrent:  # truncation runs further passes
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
