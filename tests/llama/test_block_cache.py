"""What a block head says is what the formulas in dev/heads.md say, whatever way it was fed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from localspec import ModelOptions
from localspec.decoding.sampling import Rows
from localspec.errors import Cancelled
from localspec.llama.block_cache import BlockCache, BlockShape
from localspec.llama.context import Context
from localspec.llama.head_cache import PIECE
from localspec.llama.model import Model
from tests.support import block_heads, ggufs, heads
from tests.support.block_heads import MASK

OPTIONS = ModelOptions(context=512, threads=1, kv_type_k="f32", kv_type_v="f32")
LAYERS = (0, 1, 1)
TEXT = [int(token) for token in np.random.default_rng(3).integers(300, 8000, 2 * PIECE + 9)]
ALIKE = 0.02
"""Rows reach 10."""
SIZE = 5
KINDS: dict[str, tuple[dict[str, Any], BlockShape]] = {
    "dflash": ({}, BlockShape(SIZE, MASK)),
    "causal": ({"causal": True}, BlockShape(SIZE, MASK, causal=True)),
    "sections": ({"sections": True}, BlockShape(SIZE, MASK)),
    "own": ({"own": True}, BlockShape(SIZE, MASK)),
    "cut": ({"d2t": tuple(range(500, 4000, 7))}, BlockShape(SIZE, MASK)),
    "dspark": ({"markov": True}, BlockShape(SIZE, MASK, anchored=True)),
    "bonus": (
        {"markov": True, "anchored": False, "confidence": True, "d2t": tuple(range(500, 4000, 7))},
        BlockShape(SIZE, MASK),
    ),
}


class Bench:
    """Heads with random weights over a small target, and made-up inputs of its layers."""

    def __init__(self, folder: Path, target: Path) -> None:
        self.target = Model(target, OPTIONS)
        self.context = Context(self.target, OPTIONS)
        self.width = self.target.width
        self.weights = {"target": heads.weights(target)}
        self.models: dict[str, Model] = {}
        self.made: list[BlockCache] = []
        for name, (made, _) in KINDS.items():
            path = folder / f"{name}.gguf"
            block_heads.block(path, target, layers=LAYERS, depth=2, seed=1, **made)
            self.models[name] = Model(path, OPTIONS, head=True)
            self.weights[name] = heads.weights(path)
        random = np.random.default_rng(7)
        self.inputs: Rows = random.standard_normal((len(TEXT), 3 * self.width), np.float32)

    def close(self) -> None:
        for one in (*self.made, *self.models.values(), self.context, self.target):
            one.close()  # type: ignore[attr-defined]

    def cache(self, name: str) -> BlockCache:
        cache = BlockCache(self.models[name], self.context.handle, OPTIONS, KINDS[name][1])
        self.made.append(cache)
        return cache

    def fed(self, name: str, length: int, first: int = 0) -> BlockCache:
        """One that knows the states of TEXT before its first `length` tokens' last one."""
        cache = self.cache(name)
        cache.begin(TEXT[:length])
        cache.feed(TEXT[:length], self.inputs[first : length - 1])
        return cache

    def formulas(self, name: str, inputs: Rows, last: int, count: int) -> Rows:
        """dev/heads.md."""
        w, shape, n = self.weights[name], KINDS[name][1], self.width
        embeddings = w.get("token_embd.weight", self.weights["target"]["token_embd.weight"])
        output = w.get("output.weight", self.weights["target"]["token_embd.weight"])
        dim, told = n // 2, len(inputs)

        def norm(x: Rows, weight: Rows) -> Rows:
            found: Rows = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + 1e-5) * weight
            return found

        def rotated(x: Rows, first: int) -> Rows:
            """Halves turned by place × 10000^(−2i/dim): RoPE of type NEOX."""
            angles = (first + np.arange(len(x)))[:, None, None] * 10000.0 ** (
                -np.arange(dim // 2) / (dim // 2)
            )
            a, b = x[..., : dim // 2], x[..., dim // 2 :]
            cos, sin = np.cos(angles), np.sin(angles)
            return np.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)

        tokens = [last, *[shape.mask] * (shape.tokens(count) - 1)]
        g = norm(inputs @ w["fc.weight"].T, w["enc.output_norm.weight"])
        x = embeddings[tokens]
        for layer in range(2):
            b = {k[6:-7]: v for k, v in w.items() if k.startswith(f"blk.{layer}.")}
            y = norm(x, b["attn_norm"])

            def split(rows: Rows, matrix: str, b: dict[str, Rows] = b) -> Rows:
                return (rows @ b[matrix].T).reshape(len(rows), 2, dim)

            q = rotated(norm(split(y, "attn_q"), b["attn_q_norm"]), told)
            k = np.concatenate(
                [
                    rotated(norm(split(g, "attn_k"), b["attn_k_norm"]), 0),
                    rotated(norm(split(y, "attn_k"), b["attn_k_norm"]), told),
                ]
            )
            v = np.concatenate([split(g, "attn_v"), split(y, "attn_v")])
            scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(dim)
            if shape.causal:
                later = np.triu(np.ones((len(tokens), len(tokens)), bool), 1)
                scores[:, :, told:][:, later] = -np.inf
            shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
            shares /= shares.sum(axis=-1, keepdims=True)
            attended = np.einsum("hqk,khd->qhd", shares, v).reshape(len(tokens), n)
            x = x + attended @ b["attn_output"].T
            y = norm(x, b["ffn_norm"])
            gate, up = y @ b["ffn_gate"].T, y @ b["ffn_up"].T
            x = x + (gate / (1.0 + np.exp(-gate)) * up) @ b["ffn_down"].T
        rows = norm(x, w["output_norm.weight"]) @ output.T
        rows = rows if shape.anchored else rows[1:]
        if "markov_w1.weight" in w:
            above, ids = last, w.get("d2t", np.arange(len(output))).astype(int)
            for row in rows:
                row += w["markov_w2.weight"] @ w["markov_w1.weight"][above]
                above = int(ids[row.argmax()])
        if "d2t" in w:
            full = np.full((len(rows), len(embeddings)), -np.inf, np.float32)
            full[:, w["d2t"].astype(int)] = rows
            return full
        return rows


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("heads")
    opened = Bench(folder, ggufs.tiny_llama(folder / "target.gguf"))
    yield opened
    opened.close()


def apart(rows: Rows, expected: Rows) -> float:
    """Most that rows differ by; both lack the same tokens."""
    assert rows.shape == expected.shape
    assert (np.isfinite(rows) == np.isfinite(expected)).all()
    where = np.isfinite(rows)
    assert np.abs(expected[where]).max() > 3.0
    return float(np.abs(rows[where] - expected[where]).max())


@pytest.mark.parametrize("count", [1, 3, SIZE])
@pytest.mark.parametrize("name", sorted(KINDS))
def test_rows_are_those_of_the_formulas_in_the_docs(bench: Bench, name: str, count: int) -> None:
    cache = bench.fed(name, 21)
    most = KINDS[name][1].most
    assert most == (SIZE if name == "dspark" else SIZE - 1)
    rows = cache.draft(TEXT[20], count)
    expected = bench.formulas(name, bench.inputs[:20], TEXT[20], min(count, most))
    assert apart(rows, expected) < ALIKE
    assert cache.tokens == TEXT[:20]


@pytest.mark.parametrize("length", [40, PIECE, PIECE + 1, 2 * PIECE + 5])
def test_rows_do_not_depend_on_the_way_of_feeding(bench: Bench, length: int) -> None:
    """In pieces, token by token, with drafts between."""
    whole = bench.fed("dflash", length)
    expected = whole.draft(TEXT[length - 1], 4).copy()
    cache = bench.cache("dflash")
    cache.begin(TEXT[:length])
    for end in (30, 31, 33, length - 2, length - 1):
        known = len(cache._text)
        cache.feed(TEXT[: end + 1], bench.inputs[max(0, known - 1) : end])
        if end != 31:
            cache.draft(TEXT[end], 2)
        assert cache.place == end + 1
    assert apart(cache.draft(TEXT[length - 1], 4), expected) < ALIKE
    assert cache.tokens == TEXT[: length - 1]


def test_text_that_goes_on_otherwise_keeps_what_it_begins_with(bench: Bench) -> None:
    cache = bench.fed("dflash", 60)
    cache.draft(TEXT[59], 4)
    other = [*TEXT[:40], *TEXT[100:110]]
    cache.begin(other)
    assert cache.tokens == TEXT[:40]
    cache.feed(other, bench.inputs[100:109])
    inputs = np.concatenate([bench.inputs[:40], bench.inputs[100:109]])
    expected = bench.formulas("dflash", inputs, other[-1], 4)
    assert apart(cache.draft(other[-1], 4), expected) < ALIKE
    cache.begin(TEXT[120:130])
    assert cache.tokens == []
    assert cache.place == 0


def test_where_states_are_lacking_it_begins_behind_that(bench: Bench) -> None:
    cache = bench.fed("dflash", 41, first=30)
    expected = bench.formulas("dflash", bench.inputs[30:40], TEXT[40], 4)
    assert apart(cache.draft(TEXT[40], 4), expected) < ALIKE
    assert cache.known_from() == 30
    cache.feed(TEXT[:61], bench.inputs[55:60])  # and once more, further on
    expected = bench.formulas("dflash", bench.inputs[55:60], TEXT[60], 4)
    assert apart(cache.draft(TEXT[60], 4), expected) < ALIKE
    assert cache.known_from() == 55


def test_measuring_and_stopping_leave_nothing_behind(bench: Bench) -> None:
    cache = bench.fed("dflash", 30)
    before = cache.draft(TEXT[29], 4).copy()
    for count in (1, 4, 60):
        assert cache.extend(cache.filler(count), count).shape[0] == count
        cache.truncate(29)
    assert apart(cache.draft(TEXT[29], 4), before) < ALIKE
    cache.feed(TEXT[:40], bench.inputs[29:39])
    cache.cancel()
    with pytest.raises(Cancelled):
        cache.draft(TEXT[39], 4)
    cache.resume()
    expected = bench.formulas("dflash", bench.inputs[:39], TEXT[39], 4)
    assert apart(cache.draft(TEXT[39], 4), expected) < ALIKE
    assert cache.tokens == TEXT[:39]
