"""A KV cache: rows of several tokens, and what is refused or does not fit. See `test_any_order`."""

from __future__ import annotations

import pytest

from localspec import NativeError
from localspec.decoding.sampling import Rows
from localspec.decoding.tree import ROOT
from localspec.llama.context import Context
from localspec.llama.context_params import MAX_LEAVES, MAX_TREE
from tests.llama.rows import NOISE, distance, fresh


def rows_after(context: Context, *parts: list[int]) -> list[Rows]:
    """The row after each part, decoded one after the other from an empty cache."""
    context.clear()
    return [context.extend(part)[-1].copy() for part in parts]


def test_rows_of_several_outputs_stand_behind_their_tokens(
    context: Context, tokens: list[int]
) -> None:
    reference = rows_after(context, tokens[:-3], *([token] for token in tokens[-3:]))
    context.clear()
    rows = context.extend(tokens, 4)
    assert rows.shape == (4, context.model.vocabulary.size)
    for row, expected in zip(rows, reference, strict=True):
        assert distance(row, expected) < NOISE


def test_a_full_cache_is_an_error_that_changes_nothing(context: Context, tokens: list[int]) -> None:
    full = (tokens * 40)[:510]
    context.extend(full)
    with pytest.raises(NativeError, match=r"512 tokens is full.*--ctx"):
        context.extend([1, 2, 3])
    assert context.tokens == full
    reference = rows_after(context, full, [5])[-1]
    context.truncate(510)
    assert distance(context.extend([5])[-1], reference) < NOISE


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
