"""Trees behind a draft model's text: the branch that was committed stays, nothing is read twice."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.decoding.tree import ROOT
from localspec.drafters.draft_model import DraftModel
from tests.drafters.lively import LIVELY, TEXT, begun, rows_behind
from tests.support.toys import BranchingToyCache, ToyModel, examples


def test_rows_of_a_tree_are_cut_to_the_targets_tokens() -> None:
    wide = ToyModel(np.broadcast_to([0.1, 0.2, 0.1, 0.3, 0.9], (5, 5, 5)))
    for size in (3, 5, 7):
        rows = DraftModel(BranchingToyCache(wide), size).grow([1], [ROOT], [0])
        assert rows.shape == (2, size)
        assert np.isfinite(rows).sum(axis=1).tolist() == [min(size, 5)] * 2


NODES = ([1, 2], [ROOT, ROOT]), ([0, 1], [1, 1]), ([2], [3])
"""1, and 2 0, and 2 1 2; level by level."""


def grown(cache: BranchingToyCache) -> DraftModel:
    """A tree of three branches behind TEXT."""
    model = begun(cache)
    model.grow([], [], [2])
    for tokens, parents in NODES:
        model.grow(tokens, parents)
    return model


@pytest.mark.parametrize("prompt", [[0, 2], [0, 1, 2, 2, 1, 0, 0], [2]])
def test_new_prompt_ends_the_tree(prompt: list[int]) -> None:
    """What it shares with the new text is not read again, the tree's branch included."""
    cache = BranchingToyCache(LIVELY)
    model = grown(cache)
    held = {(*TEXT, 2), (*TEXT, 2, 1), *(tuple(TEXT[:end]) for end in (1, 2, 3))}
    cache.decoded.clear()
    model.begin(prompt)
    assert cache.tokens == prompt[:-1]
    assert not held & set(cache.decoded)


tokens = st.integers(0, 2)
rounds = st.lists(
    st.tuples(
        st.lists(st.tuples(st.integers(0, 7), tokens), max_size=8),
        st.lists(tokens, min_size=1, max_size=4),
    ),
    max_size=6,
)


@examples(150)
@given(rounds=rounds)
def test_nothing_that_is_kept_is_decoded_again(
    rounds: list[tuple[list[tuple[int, int]], list[int]]],
) -> None:
    """Whatever grows, and whatever comes: a pass reads what the cache lacks, and each node once.

    The last token is dropped even if it was grown: the row behind it is gone.
    """
    cache = BranchingToyCache(LIVELY, max_leaves=64)
    model, context = begun(cache), list(TEXT)
    for growth, came in rounds:
        kept, before = len(cache.tokens), len(cache.decoded)
        row = model.grow([], [], context[len(cache.tokens) :])
        assert row.tolist() == rows_behind(context)
        paths: list[tuple[int, ...]] = []
        for choice, token in growth:
            parent = choice % (len(paths) + 1) - 1
            path = (*(() if parent == ROOT else paths[parent]), token)
            if path not in paths:
                row = model.grow([token], [parent])
                assert row.tolist() == rows_behind([*context, *path])
                paths.append(path)
        read = cache.decoded[before:]
        assert len(read) == len(set(read)) == len(context) - kept + len(paths)
        borne_out = [len(path) for path in paths if path == tuple(came[: len(path)])]
        held = len(context) + max(borne_out, default=0)
        context += came
        model.sync(context)
        assert cache.tokens == context[: min(held, len(context) - 1)]
