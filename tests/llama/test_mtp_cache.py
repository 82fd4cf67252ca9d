"""What an MTP layer has read of a text: each token with what the target made of the one before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from localspec import ModelOptions, NativeError
from localspec.decoding.interfaces import NEXTN
from localspec.decoding.sampling import Rows
from localspec.decoding.tree import ROOT
from localspec.llama.context import Context
from localspec.llama.eagle_cache import MtpCache
from localspec.llama.head_cache import PIECE
from localspec.llama.model import Model
from tests.support import mtp

OPTIONS = ModelOptions(context=256, threads=1, kv_type_k="f32", kv_type_v="f32")
TEXT = [int(token) for token in np.random.default_rng(3).integers(300, 8000, 2 * PIECE + 9)]
ALIKE = 0.05
"""Rows of passes of other sizes, whose kernels round differently; all are within 20 of 0."""


class Bench:
    """A target with an MTP layer, and what it made of TEXT.

    Attributes:
        states: behind each token of TEXT, [tokens, width].
        rows: its own logits behind the last 20.
    """

    def __init__(self, path: Path) -> None:
        self.model = Model(path, OPTIONS, mtp=True)
        self.context = Context(self.model, OPTIONS)
        self.context.want_hidden((NEXTN,))
        self.context.gather_hidden()
        self.rows: Rows = self.context.extend(TEXT, 20).copy()
        parts = [self.context.gathered()[NEXTN], self.context.hidden(20)[NEXTN]]
        self.states: Rows = np.concatenate(parts)
        self.made: list[MtpCache] = []

    def cache(self, length: int) -> MtpCache:
        """One that knows the states before the last of so many tokens."""
        cache = MtpCache(self.model, self.context.handle, OPTIONS)
        self.made.append(cache)
        cache.begin(TEXT[:length])
        cache.feed(TEXT[:length], self.states[: length - 1])
        return cache

    def close(self) -> None:
        for cache in self.made:
            cache.close()
        self.context.close()
        self.model.close()


@pytest.fixture(scope="module", params=sorted(mtp.MAKERS))
def architecture(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def lens(architecture: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    bench = Bench(mtp.MAKERS[architecture](tmp_path_factory.mktemp("mtp") / "lens.gguf"))
    yield bench
    bench.close()


@pytest.fixture(scope="module")
def random(architecture: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    path = tmp_path_factory.mktemp("mtp") / "random.gguf"
    bench = Bench(mtp.MAKERS[architecture](path, seed=1))
    yield bench
    bench.close()


def test_a_token_is_read_with_the_targets_state_of_the_one_before(lens: Bench) -> None:
    """A lens says behind a token what the target said of that token."""
    cache = lens.cache(len(TEXT))
    assert cache.tokens == TEXT[:1], "of the first token there is no pair"
    rows = cache.extend(TEXT[1:], 19)
    assert np.abs(rows - lens.rows[:-1]).max() < ALIKE
    assert not np.allclose(rows[:-1], rows[1:], atol=1.0), "places differ"


def test_states_of_every_token_come_beside_few_logits(lens: Bench) -> None:
    """Of a prompt as well, whatever the size of the pass."""
    assert len(lens.states) == len(TEXT)
    other = Context(lens.model, OPTIONS)
    try:
        other.want_hidden((NEXTN,))
        for token, state in zip(TEXT[:5], lens.states, strict=False):
            other.extend([token])
            assert np.abs(other.hidden(1)[NEXTN][0] - state).max() < ALIKE
    finally:
        other.close()


def test_behind_what_is_drafted_the_state_is_its_own(lens: Bench) -> None:
    """Which a lens passes on as it is, along every branch."""
    cache = lens.cache(len(TEXT))
    expected = lens.rows[-2]
    assert np.abs(cache.grow([], [], TEXT[1:])[0] - expected).max() < ALIKE
    for tokens, parents in (([5, 6, 7], [ROOT] * 3), ([8, 9], [1, 1]), ([3], [4])):
        rows = cache.grow(tokens, parents)
        assert rows.shape == (len(tokens), expected.size)
        assert np.abs(rows - expected).max() < ALIKE
    cache.settle([1])
    assert cache.tokens == TEXT, "accepted tokens are read again"


def test_rows_do_not_depend_on_what_was_drafted_and_dropped(random: Bench) -> None:
    """It is rolled back by position, and goes on with the target's states."""
    whole = random.cache(len(TEXT))
    expected = whole.extend(TEXT[1:], 3).copy()
    assert not np.allclose(expected[1], expected[2], atol=0.5), "places differ"
    held = len(TEXT) - 3
    cache = random.cache(held)
    cache.extend(TEXT[1:held])
    cache.grow([1, 2], [ROOT, ROOT])
    cache.grow([4, 3], [1, 0])
    cache.settle([1])
    cache.extend([9, 8])
    for place in range(held, len(TEXT)):
        cache.drop_drafted()
        cache.feed(TEXT[: place + 1], random.states[place - 1 : place])
        row = cache.extend(TEXT[len(cache.tokens) : place + 1])[0]
        assert np.abs(row - expected[place - held]).max() < ALIKE


def test_a_model_without_such_a_graph_is_refused(target_path: Path) -> None:
    with Model(target_path, OPTIONS) as model:
        context = Context(model, OPTIONS)
        try:
            with pytest.raises(NativeError, match=r"no states for MTP layers.*--draft none"):
                context.want_hidden((NEXTN,))
        finally:
            context.close()
