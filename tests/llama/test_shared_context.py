"""One cache for several answers: each sees its own text and nothing of the others'."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from localspec import ModelOptions, NativeError, UsageError
from localspec.llama.batch import PassPart
from localspec.llama.context import Context
from localspec.llama.model import Model
from localspec.llama.native_context import CacheFull
from localspec.llama.shared_context import SharedContext
from tests.llama.rows import NOISE, distance, fresh, seats
from tests.support import ggufs

ANSWERS = 3
OPTIONS = ModelOptions(context=512, batch=128, parallel=ANSWERS)


@pytest.fixture
def shared(model: Model) -> Iterator[SharedContext]:
    opened = SharedContext(model, OPTIONS)
    yield opened
    opened.close()


def chain(tokens: list[int], sequence: int, start: int = 0) -> PassPart:
    return PassPart(tokens, range(start, start + len(tokens)), ((sequence,),), 1)


def test_a_text_that_begins_like_another_shares_its_cells(
    shared: SharedContext, reference: Context
) -> None:
    """Four texts of 300 tokens that have 280 in common fit into 512 cells."""
    common = [1, *range(300, 579)]
    first, *others = seats(shared)
    first.extend(common)
    kept = shared.kept_lot(0).first
    shared.share(first.lot.first, kept, len(common))
    first.extend([5] * 20)
    for number, cache in enumerate(others):
        cache.begin_with(kept, common)
        row = cache.extend([50 + number] * 20)[-1].copy()
        assert distance(row, fresh(reference, [*common, *[50 + number] * 20])) < NOISE
    first.clear()
    others[0].clear()
    row = others[1].extend([9])[-1].copy()
    assert distance(row, fresh(reference, [*common, *[51] * 20, 9])) < NOISE


def test_a_full_cache_reads_nothing_and_what_failed_can_be_undone(
    shared: SharedContext, reference: Context
) -> None:
    first, second, _ = seats(shared)
    first.extend(list(range(100, 350)))
    second.extend(list(range(100, 350)))
    with pytest.raises(CacheFull):
        second.extend([7] * 20)
    assert len(second.tokens) == 250
    part = chain([7] * 5, second.lot.first, 250)
    shared.decode([part])
    shared.undo([part])
    assert shared.length(second.lot.first) == 250
    row = second.extend([42])[-1].copy()
    assert distance(row, fresh(reference, [*range(100, 350), 42])) < NOISE


def test_what_it_cannot_do_is_refused(shared: SharedContext, tmp_path: Path) -> None:
    cache = seats(shared)[0]
    cache.want_hidden(())
    with pytest.raises(UsageError, match="last hidden state"):
        cache.want_hidden((shared.model.layers,))
    path = ggufs.tiny_mamba(tmp_path / "mamba.gguf")
    with Model(path, OPTIONS) as model, pytest.raises(NativeError, match="recurrent"):
        SharedContext(model, OPTIONS)
