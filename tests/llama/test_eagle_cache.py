"""What an EAGLE-3 head has read is what the protocol says, whatever way it was read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from localspec import ModelOptions
from localspec.decoding.sampling import Rows
from localspec.decoding.tree import ROOT
from localspec.llama import head_cache
from localspec.llama.context import Context
from localspec.llama.eagle_cache import EagleCache
from localspec.llama.head_cache import PIECE
from localspec.llama.model import Model
from tests.support import heads

OPTIONS = ModelOptions(context=512, threads=1)
TEXT = [int(token) for token in np.random.default_rng(3).integers(300, 8000, 200)]
NOISE = 0.3
"""As in test_hidden: products of floats here, of 8-bit activations there."""
ALIKE = 0.05
"""Rows of passes of other sizes, whose kernels round differently; all are within 20 of 0."""


class Bench:
    """A head over the embedded target, and what that made of TEXT.

    Attributes:
        inputs: of the three layers behind each token of TEXT, [tokens, 3 × width].
    """

    def __init__(self, folder: Path, target_path: Path) -> None:
        self.target = Model(target_path, OPTIONS)
        self.context = Context(self.target, OPTIONS)
        self.context.want_hidden(heads.LAYERS)
        self.context.gather_hidden()
        self.context.extend(TEXT)
        last, before = self.context.hidden(1), self.context.gathered()
        parts = [np.concatenate([before[i], last[i]]) for i in heads.LAYERS]
        self.inputs: Rows = np.concatenate(parts, axis=1)
        known = heads.weights(target_path)
        self._norm, self._output = known["output_norm.weight"], known["token_embd.weight"]
        self.made: list[EagleCache] = []
        self.models = {
            name: Model(path, OPTIONS, head=True)
            for name, path in {
                "lens": heads.eagle(folder / "lens.gguf"),
                "random": heads.eagle(folder / "random.gguf", seed=1),
            }.items()
        }

    def lens(self, states: Rows) -> Rows:
        """The target's own output of such states."""
        root = np.sqrt(np.mean(states * states, axis=-1, keepdims=True) + 1e-5)
        rows: Rows = states / root * self._norm @ self._output.T
        return rows

    def cache(self, name: str) -> EagleCache:
        cache = EagleCache(self.models[name], self.context.handle, OPTIONS)
        self.made.append(cache)
        return cache

    def fed(self, name: str, length: int, first: int = 0) -> EagleCache:
        """One that knows the states of TEXT before its first `length` tokens' last one."""
        cache = self.cache(name)
        cache.begin(TEXT[:length])
        cache.feed(TEXT[:length], self.inputs[first : length - 1])
        return cache


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory, target_path: Path) -> Iterator[Bench]:
    opened = Bench(tmp_path_factory.mktemp("heads"), target_path)
    yield opened
    for one in (*opened.made, *opened.models.values(), opened.context, opened.target):
        one.close()  # type: ignore[attr-defined]


def read(cache: EagleCache, text: Sequence[int], outputs: int = 1) -> Rows:
    """The rest of a text."""
    return cache.extend(text[len(cache.tokens) :], outputs).copy()


def test_behind_what_is_drafted_the_state_is_the_heads_own(bench: Bench) -> None:
    """Which a lens passes on as it is, along every branch."""
    cache = bench.fed("lens", 41)
    expected = bench.lens(bench.inputs[39:40, 2 * bench.target.width :])[0]
    assert cache.grow([], [], TEXT[1:41]).shape == (1, expected.size)
    for tokens, parents in (([5, 6, 7], [ROOT] * 3), ([8, 9], [1, 1]), ([3], [4])):
        rows = cache.grow(tokens, parents)
        assert rows.shape == (len(tokens), expected.size)
        assert np.abs(rows - expected).max() < NOISE
    cache.settle([1])
    assert cache.tokens == TEXT[:41], "accepted tokens are read again"
    assert np.abs(cache.extend([8])[0] - expected).max() < NOISE


@pytest.mark.parametrize("length", [40, PIECE, PIECE + 1, PIECE + 2, 2 * PIECE + 5])
def test_rows_do_not_depend_on_the_way_of_reading(bench: Bench, length: int) -> None:
    """In pieces, token by token at the end, and after drafts that were dropped."""
    text = TEXT[:length]
    whole = bench.fed("random", length)
    expected = read(whole, text, 3)
    assert not np.allclose(expected[1], expected[2], atol=1.0), "places differ"
    cache = bench.cache("random")
    cache.begin(text)
    cache.feed(text[:-3], bench.inputs[: length - 4])
    read(cache, text[:-3])
    cache.grow([1, 2], [ROOT, ROOT])
    cache.grow([4, 3], [1, 0])
    cache.settle([1])
    cache.extend([9, 8])
    for more in (-2, -1, None):
        cache.drop_drafted()
        context = text[:more]
        cache.feed(context, bench.inputs[len(context) - 2 : len(context) - 1])
        row = read(cache, context)[0]
        assert np.abs(row - expected[3 - len(text[len(context) :]) - 1]).max() < ALIKE


def test_branches_of_a_tree_are_read_like_chains(bench: Bench) -> None:
    cache = bench.fed("random", 41)
    cache.grow([], [], TEXT[1:41])
    first = cache.grow([5, 6], [ROOT, ROOT]).copy()
    second = cache.grow([7, 8, 9], [0, 1, 1]).copy()
    third = cache.grow([10], [4]).copy()
    for path, rows in {(5, 7): second[0], (6, 8): second[1], (6, 9, 10): third[0]}.items():
        chain = bench.fed("random", 41)
        read(chain, TEXT[:41])
        found = [chain.extend([token])[0].copy() for token in path]
        assert np.abs(found[0] - first[path[0] - 5]).max() < ALIKE
        assert np.abs(found[-1] - rows).max() < ALIKE


def test_where_states_are_lacking_it_begins_behind_that(bench: Bench) -> None:
    """The lens needs none of the text before."""
    cache = bench.fed("lens", 41, first=30)
    assert cache.tokens == TEXT[:31]
    assert cache.known_from() == 30
    rows = read(cache, TEXT[:41], 10)
    assert np.abs(rows - bench.lens(bench.inputs[30:40, 2 * bench.target.width :])).max() < NOISE
    # And once more, further on.
    cache.feed(TEXT[:61], bench.inputs[55:60])
    assert cache.tokens == TEXT[:56]
    rows = read(cache, TEXT[:61], 5)
    assert np.abs(rows - bench.lens(bench.inputs[55:60, 2 * bench.target.width :])).max() < NOISE


def test_text_that_goes_on_otherwise_keeps_what_it_begins_with(bench: Bench) -> None:
    """The state of the last shared token is the one that is needed next, and is not told again."""
    cache = bench.fed("random", 60)
    read(cache, TEXT[:60])
    other = [*TEXT[:40], *TEXT[100:110]]
    cache.begin(other)
    assert cache.tokens == TEXT[:40]
    cache.feed(other, bench.inputs[100:109])  # any do: the target would have read 40 to 48
    assert len(cache.tokens) == 40, "nothing is lacking"
    fresh = bench.cache("random")
    fresh.begin(other)
    fresh.feed(other, np.concatenate([bench.inputs[:40], bench.inputs[100:109]]))
    assert np.abs(read(cache, other) - read(fresh, other)).max() < ALIKE
    cache.begin(TEXT[150:160])
    assert cache.tokens == []


def test_what_nobody_asks_for_is_not_kept_for_ever(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head_cache, "HIDDEN_BEFORE", 20)
    cache = bench.cache("lens")
    cache.begin(TEXT[:10])
    for end in range(10, 60):
        cache.feed(TEXT[: end + 1], bench.inputs[max(0, end - 2) : end])
    assert cache.known_from() == 59 - 20
    rows = read(cache, TEXT[:60], 4)
    assert np.abs(rows - bench.lens(bench.inputs[55:59, 2 * bench.target.width :])).max() < NOISE
    # What was read stays, however long the text.
    cache.feed(TEXT[:70], bench.inputs[59:69])
    assert cache.known_from() == 59 - 20
    assert cache.tokens == TEXT[:60]


def test_rows_are_those_of_the_formulas_in_the_docs(bench: Bench, target_path: Path) -> None:
    """dev/heads.md, with random weights everywhere, over a text of nine pairs."""
    cache = bench.fed("random", 10)
    rows = read(cache, TEXT[:10], 9)
    w = heads.weights(bench.models["random"].path)
    embeddings = heads.weights(target_path)["token_embd.weight"]
    n = bench.target.width

    def norm(x: Rows, name: str) -> Rows:
        scaled: Rows = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + 1e-5) * w[name]
        return scaled

    def rotated(x: Rows) -> Rows:
        """Neighbours turned by place × 10000^(−2i/64): RoPE of type NORM."""
        pairs = x.reshape(9, 6, 32, 2)
        angles = np.arange(9)[:, None] * 10000.0 ** (-np.arange(32) / 32)
        cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
        a, b = pairs[..., 0], pairs[..., 1]
        return np.stack([a * cos - b * sin, a * sin + b * cos], axis=-1).reshape(9, 6, 64)

    g = bench.inputs[:9] @ w["fc.weight"].T
    tokens = norm(embeddings[TEXT[1:10]], "blk.0.attn_norm.weight")
    x = np.concatenate([tokens, norm(g, "blk.0.attn_norm_2.weight")], axis=1)
    q = rotated(x @ w["blk.0.attn_q.weight"].T)
    k = rotated(x @ w["blk.0.attn_k.weight"].T)
    v = (x @ w["blk.0.attn_v.weight"].T).reshape(9, 6, 64)
    scores = np.einsum("qhd,khd->hqk", q, k) / 8.0
    scores[:, np.triu(np.ones((9, 9), bool), 1)] = -np.inf
    shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares /= shares.sum(axis=-1, keepdims=True)
    attended = np.einsum("hqk,khd->qhd", shares, v).reshape(9, n)
    a = g + attended @ w["blk.0.attn_output.weight"].T
    inner = norm(a, "blk.0.ffn_norm.weight")
    gate, up = inner @ w["blk.0.ffn_gate.weight"].T, inner @ w["blk.0.ffn_up.weight"].T
    y = a + (gate / (1.0 + np.exp(-gate)) * up) @ w["blk.0.ffn_down.weight"].T
    expected = norm(y, "output_norm.weight") @ embeddings.T
    assert np.abs(expected).max() > 3.0
    assert np.abs(rows - expected).max() < NOISE
