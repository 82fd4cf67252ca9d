"""`exact`: answers are plain decoding's, whatever drafts, greedy and with a seed."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import llama_cpp
import pytest

import localspec
from localspec import Drafting, Engine, ModelOptions, SamplingParams, UsageError, paths
from localspec.decoding.tree import TokenTree
from localspec.llama import library
from localspec.llama.context import Context
from localspec.llama.model import Model
from localspec.llama.native_context import context_params, kv_types
from localspec.llama.options import MAX_LEAVES, MAX_TREE
from localspec.loading import batch_invariance
from localspec.loading.batch_invariance import rows_equal_after_trees
from tests.support import inside
from tests.support.adapters import lora
from tests.support.asking import PLAIN, WAYS, said
from tests.support.ggufs import tiny_llama

OPTIONS = ModelOptions(context=1024, threads=1, exact=True)
STOCK = replace(OPTIONS, kernels="off")
STORY = "Once upon a time there was a fox who lived in the wood with a bird and a frog. " * 16
"""More than 256 tokens: llama.cpp's kernels for long texts are at work behind it."""
USED = ("ngram", "model", "model tree", "auto")


@pytest.fixture(scope="module")
def stock() -> Iterator[Engine]:
    with localspec.load(options=STOCK) as engine:
        yield engine


@pytest.fixture(scope="module", params=["as it comes", "stock"])
def exact(request: pytest.FixtureRequest, stock: Engine) -> Iterator[Engine]:
    if request.param == "stock":
        yield stock
        return
    with localspec.load(options=OPTIONS) as engine:
        yield engine


def answer(engine: Engine, drafting: Drafting, sampling: SamplingParams) -> list[int]:
    engine.clear()
    return said(engine, STORY, drafting, count=48, sampling=sampling)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_answers_are_plain_decodings(exact: Engine, temperature: float) -> None:
    sampling = SamplingParams(temperature=temperature, seed=7)
    plain = answer(exact, PLAIN, sampling)
    assert len(plain) > 20
    for name in USED:
        assert answer(exact, WAYS[name], sampling) == plain, name
    stats = exact.generate(STORY, max_tokens=48, sampling=sampling, drafting=WAYS["model"]).stats
    assert (stats.rule, stats.lossless) == ("match" if temperature else "greedy", True)
    assert stats.accepted > 0


@pytest.mark.parametrize("rule", ["block", "token", "typical"])
def test_another_rule_is_refused(exact: Engine, rule: str) -> None:
    with pytest.raises(UsageError, match="rule 'match', not"):
        exact.generate("Hello", max_tokens=1, drafting=Drafting(rule=rule))


def test_with_kernels_nothing_is_given_up(kernels: None) -> None:
    """Neither depth nor trees nor the type of the cache, nor answers beside one another."""
    with localspec.load(options=replace(OPTIONS, parallel=2)) as engine:
        assert engine.parallel > 1
        assert engine.notices == ()
        limits = inside.limits(engine)
        assert (limits.max_draft, limits.max_leaves) == (MAX_TREE, MAX_LEAVES)
        assert kv_types(OPTIONS, engine.model) == ("f16", "f16")


def test_without_kernels_one_answer_at_a_time() -> None:
    with localspec.load(options=replace(STOCK, parallel=2)) as engine:
        assert engine.parallel == 1
        assert any("one at a time, as exact answers must" in notice for notice in engine.notices)


def test_attention_that_the_kernels_leave_to_llama_cpp_is_not_exact(
    kernels: None, tmp_path: Path
) -> None:
    """Heads of 32 numbers; where passes round alike nonetheless, it is by chance."""
    paths_of = [tiny_llama(tmp_path / f"{dim}.gguf", dim=dim) for dim in (64, 128)]
    for path, options, same in (
        (paths_of[0], ModelOptions(context=512), False),
        (paths_of[1], ModelOptions(context=512), True),
        (paths_of[1], ModelOptions(context=512, kv_type_k="f32", kv_type_v="f32"), True),
        (paths_of[1], ModelOptions(context=512, flash_attention="off"), False),
        (paths_of[1], ModelOptions(context=512, kv_type_k="q4_0", kv_type_v="q4_0"), False),
        (paths_of[1], ModelOptions(context=512, kv_type_k="q8_0", kv_type_v="q8_0"), True),
        (
            paths_of[1],
            ModelOptions(context=512, lora=str(lora(tmp_path / "a.gguf", paths_of[1]))),
            True,
        ),
    ):
        with localspec.load(path, draft=None, options=options) as engine:
            assert engine.model.kernels.in_use
            assert engine.batch_invariant == same, options


def test_a_trial_finds_cells_in_another_order(
    kernels: None, target_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Model(target_path, OPTIONS) as model:
        context = Context(model, OPTIONS)
        assert rows_equal_after_trees(context)
        keep = Context.keep

        def otherwise(context: Context, tree: TokenTree, path: Sequence[int]) -> None:
            keep(context, tree, path[:1])
            context.extend([tree.tokens[node] + 1 for node in path[1:]])

        monkeypatch.setattr(Context, "keep", otherwise)
        assert not rows_equal_after_trees(context)
        context.close()


@pytest.mark.parametrize("largest", [3, 1])
def test_drafts_are_as_long_as_passes_round_the_same_and_that_is_found_out_once(
    largest: int, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[Context] = []

    def trial(context: Context) -> int:
        tried.append(context)
        return largest

    monkeypatch.setattr(batch_invariance, "find_largest_equal_pass", trial)
    for spoilt in (False, False, True):
        if spoilt:
            kept = paths.cache_folder() / "same-bits.json"
            kept.write_text(kept.read_text().replace(f": {largest}", ': "many"'))
        with localspec.load(options=replace(STOCK, context=256)) as engine:
            stats = engine.generate("Once upon a time", max_tokens=8, drafting=WAYS["model"]).stats
        assert len(tried) == 1 + spoilt
        assert len(stats.tested_per_position) == largest - 1
        told = any("no pass over several tokens" in reason for reason in stats.reasons)
        assert told == (largest == 1)


@pytest.mark.parametrize("context", [64, 256])
def test_a_short_context_can_be_exact(context: int, home: Path) -> None:
    with localspec.load(options=ModelOptions(context=context, exact=True)) as engine:
        assert engine.generate("Once", max_tokens=4).text


def test_the_types_that_were_asked_for_stay_unless_they_round_otherwise(stock: Engine) -> None:
    quantized = replace(STOCK, kv_type_k="q8_0", kv_type_v="q8_0")
    assert kv_types(quantized, stock.model) == ("q8_0", "q8_0")
    assert kv_types(STOCK, stock.model) == ("f16", "bf16")
    assert kv_types(STOCK.for_draft(1024), stock.model) == ("f16", "f16")


def test_on_a_device_the_cache_is_of_one_type(
    target_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its attention has no use for two, and may not have them at all."""

    def value_type(**more: Any) -> int:
        options = replace(STOCK, context=64, threads=1, **more)
        with Model(target_path, options) as model:
            params = context_params(model, options, ctypes.create_string_buffer(2))
            return int(params.type_v)

    bf16 = 30
    assert value_type(gpu_layers=0) == bf16
    monkeypatch.setattr(library, "accelerated", lambda: True)
    assert value_type(gpu_layers=0) == bf16
    assert [value_type(gpu_layers=layers) for layers in (-1, 3)] == [llama_cpp.GGML_TYPE_F16] * 2
    # What was asked for stays.
    assert value_type(kv_type_k="bf16", kv_type_v="bf16") == bf16
