"""Caches of trained heads: rows do not depend on the way in which states were given."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from localspec import ModelOptions
from localspec.decoding.interfaces import NEXTN, PassRequest
from localspec.decoding.sampling import Rows
from localspec.decoding.tree import TokenTree
from localspec.errors import Cancelled
from localspec.llama.context import Context
from localspec.llama.head_caches import MAX_PASS, BlockCache, BlockShape, EagleCache
from localspec.llama.model import Model
from tests.support import block_heads, ggufs, heads, mtp

OPTIONS = ModelOptions(context=512, threads=1, kv_type_k="f32", kv_type_v="f32")
TEXT = [int(token) for token in np.random.default_rng(3).integers(300, 8000, 2 * MAX_PASS + 9)]
ROWS = 60
ALIKE = 0.05
"""Rows of passes of other sizes, whose kernels round differently; all are within 20 of 0."""
NOISE = 0.3
"""As in test_hidden: products of floats here, of 8-bit activations there."""

Cache = EagleCache | BlockCache
BLOCKS: dict[str, tuple[dict[str, Any], BlockShape]] = {
    "dflash": ({}, BlockShape(5, block_heads.MASK)),
    "dflash, causal": ({"causal": True}, BlockShape(5, block_heads.MASK, causal=True)),
    "dspark": ({"markov": True}, BlockShape(5, block_heads.MASK, anchored=True)),
}
SERIAL = ("eagle", *sorted(mtp.MAKERS))
"""Heads that read one token at a time. The others draft blocks."""


class HeadFixture:
    """A head of a kind, and its target's states of TEXT. `states`: inputs of the head after each
    token, [tokens, width]; `expected`: rows of a lens for each of the last ROWS tokens."""

    def __init__(self, kind: str, folder: Path, target_path: Path, seed: int | None) -> None:
        self.made: list[Cache] = []
        own, block = kind in mtp.MAKERS, kind in BLOCKS
        layers: tuple[int, ...] = (NEXTN,) if own else (0, 1, 1) if block else heads.LAYERS
        if own:
            path = mtp.MAKERS[kind](folder / "target.gguf", seed=seed)
        else:
            path = ggufs.tiny_llama(folder / "target.gguf") if block else target_path
        self.target = Model(path, OPTIONS, mtp=own)
        self.context = Context.open(self.target, OPTIONS)
        tree = TokenTree.chain(TEXT[1 - ROWS :], "")
        read = self.context.forward(PassRequest(TEXT[: 1 - ROWS], tree, layers))
        self.expected: Rows = read.rows.copy()
        parts = [np.concatenate([read.before[i], read.hidden[i]]) for i in layers]
        self.states: Rows = np.concatenate(parts, axis=1)
        self.head, self.noise = self.target, ALIKE
        make: Callable[..., Cache] = partial(EagleCache, mtp=True)
        if block:
            changed, shape = BLOCKS[kind]
            head = folder / "head.gguf"
            block_heads.block(head, path, layers=layers, depth=2, seed=seed, **changed)
            make = partial(BlockCache, shape=shape)
        elif not own:
            head = heads.eagle(folder / "head.gguf", seed=seed)
            make = EagleCache
            known = heads.weights(path)
            states = self.states[-ROWS:, 2 * self.target.width :]
            scale = np.sqrt(np.mean(states * states, axis=-1, keepdims=True) + 1e-5)
            normed = states / scale * known["output_norm.weight"]
            self.expected, self.noise = normed @ known["token_embd.weight"].T, NOISE
        if not own:
            self.head = Model(head, OPTIONS)
        self._make = make

    def cache(self) -> Any:
        cache = self._make(self.head, self.context.handle, OPTIONS)
        self.made.append(cache)
        return cache

    def cache_with(self, text: Sequence[int], states: Rows) -> Any:
        """A cache with these states before the last token of a text."""
        cache = self.cache()
        cache.begin(text)
        cache.feed(text, states)
        return cache

    def close(self) -> None:
        for cache in self.made:
            cache.close()
        self.context.close()
        for model in {self.head, self.target}:
            model.close()


def rows_after(cache: Any, text: Sequence[int]) -> Rows:
    """Rows after a text whose last token was not read."""
    if isinstance(cache, BlockCache):
        return cache.draft(text[-1], 4).copy()
    rows: Rows = cache.extend(text[len(cache.tokens) :]).copy()
    return rows


@pytest.fixture(scope="module", params=[*SERIAL, *BLOCKS])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def module_head(seed: int | None) -> Any:
    """A fixture: a head of each kind, with random weights for a seed."""

    @pytest.fixture(scope="module")
    def head(kind: str, tmp_path_factory: Any, target_path: Path) -> Iterator[HeadFixture]:
        folder = tmp_path_factory.mktemp("heads")
        with closing(HeadFixture(kind, folder, target_path, seed)) as made:
            yield made

    return head


lens, random = module_head(None), module_head(1)


of_serial = pytest.mark.parametrize("kind", SERIAL, indirect=True, scope="module")
of_blocks = pytest.mark.parametrize("kind", BLOCKS, indirect=True, scope="module")


@pytest.mark.parametrize("length", [40, MAX_PASS, MAX_PASS + 1, MAX_PASS + 2, 2 * MAX_PASS + 5])
def test_rows_do_not_depend_on_pieces_and_drafts(random: HeadFixture, length: int) -> None:
    """States given in pieces, single tokens at the end, and dropped drafts."""
    text, states = TEXT[:length], random.states
    expected = rows_after(random.cache_with(text, states[: length - 1]), text)
    other = rows_after(random.cache_with(text[:-1], states[: length - 2]), text[:-1])
    assert not np.allclose(expected, other, atol=1.0), "places differ"
    cache = random.cache()
    cache.begin(text)
    cache.feed(text[:-3], states[: length - 4])
    rows_after(cache, text[:-3])
    if isinstance(cache, EagleCache):
        cache.extend([1])
        cache.extend([9, 8])
    for end in (length - 2, length - 1, length):
        if isinstance(cache, EagleCache):
            cache.drop_drafted()
        cache.feed(text[:end], states[end - 2 : end - 1])
        rows = rows_after(cache, text[:end])
    assert np.abs(rows - expected).max() < ALIKE


def test_cache_begins_after_missing_states(random: HeadFixture) -> None:
    cache = random.cache_with(TEXT[:41], random.states[30:40])
    for first, end in ((30, 41), (55, 61)):  # and once more, further on
        if first > 30:
            cache.feed(TEXT[:end], random.states[first : end - 1])
        rows = rows_after(cache, TEXT[:end])
        fresh = random.cache_with(TEXT[first:end], random.states[first : end - 1])
        assert np.abs(rows - rows_after(fresh, TEXT[first:end])).max() < ALIKE


def test_other_text_keeps_the_common_prefix(random: HeadFixture) -> None:
    """The state of the last common token is needed next, and is not given again."""
    cache = random.cache_with(TEXT[:60], random.states[:59])
    rows_after(cache, TEXT[:60])
    other = [*TEXT[:40], *TEXT[100:110]]
    cache.begin(other)
    assert cache.tokens == TEXT[:40]
    # Any states do: the target would have read 40 to 48.
    cache.feed(other, random.states[100:109])
    states = np.concatenate([random.states[:40], random.states[100:109]])
    assert (
        np.abs(rows_after(cache, other) - rows_after(random.cache_with(other, states), other)).max()
        < ALIKE
    )
    cache.begin(TEXT[120:130])
    assert cache.tokens == []


@of_serial
def test_token_is_read_with_the_state_of_the_one_before(lens: HeadFixture) -> None:
    """A lens gives the target's row for the token before."""
    cache = lens.cache_with(TEXT, lens.states[:-1])
    assert cache.tokens == TEXT[:1], "of the first token there is no pair"
    rows = cache.extend(TEXT[1:], 19)
    assert np.abs(rows - lens.expected[-20:-1]).max() < lens.noise
    assert not np.allclose(rows[:-1], rows[1:], atol=1.0), "places differ"


@of_serial
def test_drafted_tokens_use_the_heads_own_state(lens: HeadFixture) -> None:
    """A lens passes its state through."""
    cache, expected = lens.cache_with(TEXT, lens.states[:-1]), lens.expected[-2]
    assert np.abs(cache.extend(TEXT[1:])[0] - expected).max() < lens.noise
    for token in (5, 8, 3):
        assert np.abs(cache.extend([token])[0] - expected).max() < lens.noise
    cache.drop_drafted()
    assert cache.tokens == TEXT, "accepted tokens are read again"
    assert np.abs(cache.extend([8])[0] - expected).max() < lens.noise


def test_states_of_all_tokens_with_few_logits(tmp_path: Path) -> None:
    """Also of a prompt, in passes of any size."""
    with (
        Model(mtp.glm(tmp_path / "glm.gguf"), OPTIONS, mtp=True) as model,
        closing(Context.open(model, OPTIONS)) as whole,
        closing(Context.open(model, OPTIONS)) as single,
    ):
        single.request_hidden((NEXTN,))
        states = whole.forward(PassRequest(TEXT[:100], TokenTree(), (NEXTN,))).before[NEXTN]
        assert len(states) == 99
        for token, state in zip(TEXT[:5], states, strict=False):
            single.extend([token])
            assert np.abs(single.hidden(1)[NEXTN][0] - state).max() < ALIKE


@of_blocks
@pytest.mark.parametrize("count", [1, 3, 9])
def test_block_is_at_most_as_long_as_trained(random: HeadFixture, kind: str, count: int) -> None:
    cache = random.cache_with(TEXT[:21], random.states[:20])
    most = 5 if kind == "dspark" else 4  # a row of the last token drafts as well
    assert cache.most == most
    whole = cache.draft(TEXT[20], most).copy()
    rows = cache.draft(TEXT[20], count)
    assert rows.shape == (min(count, most), random.target.vocabulary.size)
    assert np.isfinite(rows).all()
    # Masks see one another, unless the block is causal.
    if count == most or kind == "dflash, causal":
        assert np.abs(rows[0] - whole[0]).max() < ALIKE
    assert cache.tokens == TEXT[:20], "nothing of a block stays"


@of_blocks
def test_calibration_and_cancelling_change_nothing(random: HeadFixture) -> None:
    cache = random.cache_with(TEXT[:30], random.states[:29])
    before = cache.draft(TEXT[29], 4).copy()
    for count in (1, 4, 60):
        assert cache.extend(cache.filler(count), count).shape[0] == count
        cache.truncate(29)
    assert np.abs(cache.draft(TEXT[29], 4) - before).max() < ALIKE
    cache.feed(TEXT[:40], random.states[29:39])
    cache.cancel()
    with pytest.raises(Cancelled):
        cache.draft(TEXT[39], 4)
    cache.resume()
    fresh = random.cache_with(TEXT[:40], random.states[:39])
    assert np.abs(cache.draft(TEXT[39], 4) - fresh.draft(TEXT[39], 4)).max() < ALIKE
    assert cache.tokens == TEXT[:39]
