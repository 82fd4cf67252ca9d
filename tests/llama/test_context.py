"""KV cache operations: rows do not depend on how a token got into the cache."""

from __future__ import annotations

import pytest

from localspec import NativeError
from localspec.decoding.sampling import Rows
from localspec.decoding.tree import ROOT, TokenTree
from localspec.llama.context import Context
from tests.llama.rows import NOISE, distance


def rows_after(context: Context, *parts: list[int]) -> list[Rows]:
    """The row after each part, decoded one after the other from an empty cache."""
    context.clear()
    return [context.extend(part)[-1].copy() for part in parts]


def a_tree(tokens: list[int]) -> TokenTree:
    """┌ t0 ┬ t1 ── t2
    root ┤    └ 99
         └ 77 ── 5
    """
    tree = TokenTree()
    wrong = tree.add(77, ROOT, "test")
    first = tree.add(tokens[0], ROOT, "test")
    second = tree.add(tokens[1], first, "test")
    tree.add(99, first, "test")
    tree.add(tokens[2], second, "test")
    tree.add(5, wrong, "test")
    return tree


def test_rows_of_several_outputs_stand_behind_their_tokens(
    context: Context, tokens: list[int]
) -> None:
    reference = rows_after(context, tokens[:-3], *([token] for token in tokens[-3:]))
    context.clear()
    rows = context.extend(tokens, 4)
    assert rows.shape == (4, context.model.vocabulary.size)
    for row, expected in zip(rows, reference, strict=True):
        assert distance(row, expected) < NOISE


def test_every_node_of_a_tree_sees_its_ancestors_and_nothing_else(
    context: Context, tokens: list[int]
) -> None:
    prefix, pending, ahead = tokens[:-4], tokens[-4:-3], tokens[-3:]
    tree = a_tree(ahead)
    context.extend(prefix)
    rows = context.branch(pending, tree).copy()
    context.keep(tree, [])
    for node in [ROOT, *range(len(tree))]:
        reference = rows_after(context, prefix, pending, *([t] for t in tree.path_tokens(node)))
        assert distance(rows[node + 1], reference[-1]) < NOISE


def test_a_full_cache_is_an_error_that_changes_nothing(context: Context, tokens: list[int]) -> None:
    full = (tokens * 40)[:510]
    context.extend(full)
    with pytest.raises(NativeError, match=r"512 tokens is full.*--ctx"):
        context.extend([1, 2, 3])
    assert context.tokens == full
    reference = rows_after(context, full, [5])[-1]
    context.truncate(510)
    assert distance(context.extend([5])[-1], reference) < NOISE
