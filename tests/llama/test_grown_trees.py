"""Trees that grow in the cache level by level, nothing decoded twice."""

from __future__ import annotations

import random

import pytest

from localspec import NativeError
from localspec.decoding.sampling import Rows
from localspec.decoding.tree import ROOT, TokenTree
from localspec.llama.context import Context
from localspec.llama.context_params import MAX_LEAVES, MAX_TREE
from tests.llama.rows import NOISE, distance, fresh


def grow_at_random(
    context: Context, dice: random.Random, levels: int
) -> tuple[TokenTree, list[Rows]]:
    """A tree of up to so many levels, and its rows."""
    tree, rows, leaves = TokenTree(), list[Rows](), 1
    for _ in range(levels):
        parents = []
        taken = {node for node in range(-1, len(tree)) if tree.children(node)}
        for _ in range(dice.randint(1, 6)):
            parent = dice.randint(ROOT, len(tree) - 1)
            if parent in taken:
                if leaves == MAX_LEAVES:
                    continue
                leaves += 1
            taken.add(parent)
            parents.append(parent)
        if not parents:
            continue
        level = [dice.randint(100, 8000) for _ in parents]
        found = context.grow(level, parents)
        assert found.shape == (len(level), context.model.vocabulary.size)
        rows += [row.copy() for row in found]
        for token, parent in zip(level, parents, strict=True):
            tree.add(token, parent, "test")
    return tree, rows


@pytest.mark.parametrize("seed", range(8))
def test_each_node_reads_its_path_and_nothing_else(
    seed: int, context: Context, reference: Context, tokens: list[int]
) -> None:
    context.extend(tokens)
    tree, rows = grow_at_random(context, random.Random(seed), 5)
    assert context.tokens == tokens
    for node, row in enumerate(rows):
        assert distance(row, fresh(reference, [*tokens, *tree.path_tokens(node)])) < NOISE


def test_misuse_is_refused_before_llama_cpp_sees_it(context: Context, tokens: list[int]) -> None:
    context.extend(tokens)
    for level, parents in (
        ([], []),
        ([5], []),
        ([5], [0]),
        ([5], [-2]),
        ([5] * (MAX_LEAVES + 1), [ROOT] * (MAX_LEAVES + 1)),
        ([5] * (MAX_TREE + 1), [ROOT] * (MAX_TREE + 1)),
    ):
        with pytest.raises(ValueError):
            context.grow(level, parents)
    context.grow([5, 6], [ROOT, ROOT])
    with pytest.raises(ValueError):
        context.grow([5] * MAX_LEAVES, [0] * MAX_LEAVES)
    with pytest.raises(ValueError):
        context.settle([0, 1])
    context.grow([7], [1])
    context.settle([1, 2])
    assert context.tokens == [*tokens, 6, 7]


def test_a_full_cache_drops_the_tree_and_nothing_else(
    context: Context, reference: Context, tokens: list[int]
) -> None:
    full = (tokens * 40)[:508]
    context.extend(full)
    context.grow([5, 6], [ROOT, ROOT])
    with pytest.raises(NativeError, match=r"512 tokens is full"):
        context.grow([7, 8, 9], [0, 1, 1])
    assert context.tokens == full
    assert distance(context.extend([42])[-1].copy(), fresh(reference, [*full, 42])) < NOISE
