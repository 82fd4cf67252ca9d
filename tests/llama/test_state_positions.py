"""The positions in a state are those that its cells have."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from localspec.decoding.tree import ROOT, TokenTree
from localspec.llama.batch import PassPart
from localspec.llama.context import Context
from localspec.llama.model import Model
from localspec.llama.options import ModelOptions
from localspec.llama.sequence_state import positions
from localspec.llama.shared_context import SharedContext
from tests.support.ggufs import tiny_hybrid, tiny_mamba


@pytest.mark.parametrize("flash_attention", ["on", "off"])
def test_of_a_text(model: Model, flash_attention: str) -> None:
    """With values as they are, and transposed."""
    options = ModelOptions(context=256, threads=1, flash_attention=flash_attention)
    with closing(Context(model, options)) as context:
        context.extend([*range(40, 60)])
        found = positions(context.state())
    assert found is not None
    assert found.dtype == np.int32
    assert found.tolist() == [*range(20)]


def test_of_cells_that_are_out_of_order(model: Model) -> None:
    """After a tree whose last branch stays, cells are where the others were."""
    with closing(Context(model, ModelOptions(context=256, threads=1))) as context:
        context.extend([*range(40, 50)])
        tree = TokenTree()
        for token in (60, 61, 62):
            tree.add(token, ROOT, "test")
        context.branch([50], tree)
        context.keep(tree, [2])
        context.extend([70, 71, 72])
        found = positions(context.state())
    assert found is not None
    assert found.tolist() == [*range(11), 12, 13, 11, 14], "the holes are filled first"


def test_of_one_of_several_sequences(model: Model) -> None:
    options = ModelOptions(context=256, threads=1, parallel=2)
    with closing(SharedContext(model, options)) as shared:
        for number, count in ((0, 20), (1, 10)):
            part = PassPart([*range(40, 40 + count)], range(count), ((number * shared.leaves,),), 1)
            shared.decode([part])
        kept = Context.of(shared, shared.kept_lot(0))
        kept.begin_with(shared.leaves, [*range(40, 50)])
        found = positions(kept.state())
    assert found is not None
    assert found.tolist() == [*range(10)]


@pytest.mark.parametrize(("make", "found"), [(tiny_mamba, None), (tiny_hybrid, [*range(20)])])
def test_of_a_recurrent_memory(
    tmp_path: Path, make: Callable[[Path], Path], found: list[int] | None
) -> None:
    """It has no cells by itself, and its states are no keys."""
    options = ModelOptions(context=256, threads=1)
    with (
        Model(make(tmp_path / "model.gguf"), options) as model,
        closing(Context(model, options)) as context,
    ):
        context.extend([*range(40, 60)])
        told = positions(context.state())
    assert (None if told is None else told.tolist()) == found


@pytest.mark.parametrize("size", [0, 7, 12, 60])
def test_what_is_not_understood_has_none(model: Model, size: int) -> None:
    with closing(Context(model, ModelOptions(context=256, threads=1))) as context:
        context.extend([*range(40, 60)])
        state = context.state()
    assert positions(state[:size]) is None
    other = state.copy()
    other[8] = 0xFF  # the count of streams
    assert positions(other) is None
