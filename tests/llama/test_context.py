"""A KV cache: rows of several tokens, and what is refused or does not fit. See `test_any_order`."""

from __future__ import annotations

import pytest

from localspec import NativeError
from localspec.decoding.sampling import Rows
from localspec.decoding.tree import ROOT, TokenTree
from localspec.llama.context import Context
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


def test_a_full_cache_drops_the_tree_and_nothing_else(
    context: Context, reference: Context, tokens: list[int]
) -> None:
    full = (tokens * 40)[:508]
    context.extend(full)
    tree = TokenTree()
    for token, parent in ((5, ROOT), (6, ROOT), (7, 0), (8, 1), (9, 1)):
        tree.add(token, parent, "test")
    with pytest.raises(NativeError, match=r"512 tokens is full"):
        context.branch([4], tree)
    assert context.tokens == full
    assert distance(context.extend([42])[-1].copy(), fresh(reference, [*full, 42])) < NOISE
