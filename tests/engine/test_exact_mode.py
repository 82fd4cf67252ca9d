"""`exact`: answers equal plain decoding with any drafter, greedy and with a seed."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import localspec
from localspec import Drafting, Engine, ModelOptions, SamplingParams, UsageError, paths
from localspec.decoding.tree import TokenTree
from localspec.llama import library
from localspec.llama.context import Context
from localspec.llama.model import Model
from localspec.llama.native_context import kv_types
from localspec.llama.options import MAX_LEAVES, MAX_TREE
from localspec.loading import batch_invariance
from localspec.loading.batch_invariance import rows_equal_after_trees
from tests.support import inside
from tests.support.adapters import lora
from tests.support.asking import PLAIN, WAYS, generate
from tests.support.ggufs import tiny_llama

OPTIONS = ModelOptions(context=1024, threads=1, exact=True)
STOCK = replace(OPTIONS, kernels="off")
STORY = "Once upon a time there was a fox who lived in the wood with a bird and a frog. " * 16
"""More than 256 tokens, so that llama.cpp uses its kernels for long texts."""
USED = ("ngram", "model", "model tree", "auto")


@pytest.fixture(scope="module")
def stock() -> Iterator[Engine]:
    with localspec.load(options=STOCK) as engine:
        yield engine


@pytest.fixture(scope="module", params=[OPTIONS, STOCK], ids=["as it comes", "stock"])
def exact(request: pytest.FixtureRequest) -> Iterator[Engine]:
    with localspec.load(options=request.param) as engine:
        yield engine


def answer(engine: Engine, drafting: Drafting, sampling: SamplingParams) -> list[int]:
    engine.clear()
    return generate(engine, STORY, drafting, count=48, sampling=sampling)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_answers_equal_plain_decoding(exact: Engine, temperature: float) -> None:
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


def test_with_kernels_nothing_is_limited(kernels: None) -> None:
    """Neither depth, trees, cache types nor parallel answers."""
    with localspec.load(options=replace(OPTIONS, parallel=2)) as engine:
        assert engine.parallel > 1
        assert engine.notices == ()
        limits = inside.slot(engine).limits
        assert (limits.max_draft, limits.max_leaves) == (MAX_TREE, MAX_LEAVES)
        assert kv_types(OPTIONS, engine.model) == ("f16", "f16")


def test_without_kernels_answers_are_not_parallel() -> None:
    with localspec.load(options=replace(STOCK, parallel=2)) as engine:
        assert engine.parallel == 1
        assert any("one at a time, as exact answers require" in notice for notice in engine.notices)


def test_batch_invariance_depends_on_attention(kernels: None, tmp_path: Path) -> None:
    """llama.cpp computes attention that the kernels do not support, such as heads of size 32."""
    small, path = (tiny_llama(tmp_path / f"{dim}.gguf", dim=dim) for dim in (64, 128))
    adapter = str(lora(tmp_path / "a.gguf", path))
    cases: list[tuple[Path, dict[str, Any], bool]] = [
        (small, {}, False),
        (path, {}, True),
        (path, {"kv_type_k": "f32", "kv_type_v": "f32"}, True),
        (path, {"flash_attention": "off"}, False),
        (path, {"kv_type_k": "q4_0", "kv_type_v": "q4_0"}, False),
        (path, {"kv_type_k": "q8_0", "kv_type_v": "q8_0"}, True),
        (path, {"lora": adapter}, True),
    ]
    for model, options, same in cases:
        with localspec.load(model, draft=None, context=512, **options) as engine:
            assert engine.model.kernels.in_use
            assert engine.batch_invariant == same, options


def test_trial_detects_another_order_of_cells(
    kernels: None, target_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Model(target_path, OPTIONS) as model:
        context = Context.open(model, OPTIONS)
        assert rows_equal_after_trees(context)
        keep = Context.commit

        def keep_in_another_order(context: Context, tree: TokenTree, path: Sequence[int]) -> None:
            keep(context, tree, path[:1])
            context.extend([tree.tokens[node] + 1 for node in path[1:]])

        monkeypatch.setattr(Context, "commit", keep_in_another_order)
        assert not rows_equal_after_trees(context)
        context.close()


@pytest.mark.parametrize("largest", [3, 1])
def test_largest_equal_pass_limits_drafts(
    largest: int, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials: list[Context] = []

    def trial(context: Context) -> int:
        trials.append(context)
        return largest

    monkeypatch.setattr(batch_invariance, "find_largest_equal_pass", trial)
    for damaged in (False, False, True):
        if damaged:
            kept = paths.cache_folder() / "same-bits.json"
            kept.write_text(kept.read_text().replace(f": {largest}", ': "many"'))
        with localspec.load(options=replace(STOCK, context=256)) as engine:
            stats = engine.generate("Once upon a time", max_tokens=8, drafting=WAYS["model"]).stats
        assert len(trials) == 1 + damaged
        assert len(stats.tested_per_position) == largest - 1
        reported = any("no pass over several tokens" in reason for reason in stats.reasons)
        assert reported == (largest == 1)


@pytest.mark.parametrize("context", [64, 256])
def test_a_short_context_can_be_exact(context: int, home: Path) -> None:
    with localspec.load(options=ModelOptions(context=context, exact=True)) as engine:
        assert engine.generate("Once", max_tokens=4).text


@pytest.mark.parametrize("trained", [0, 1, 1 << 31])
def test_a_file_without_a_sensible_context_gets_the_default(tmp_path: Path, trained: int) -> None:
    with localspec.load(tiny_llama(tmp_path / "m.gguf", context=trained)) as engine:
        assert engine.generate("Once", max_tokens=4).text
        assert engine.context_length == 8192


def test_cache_types_change_only_where_they_round_differently(stock: Engine) -> None:
    quantized = replace(STOCK, kv_type_k="q8_0", kv_type_v="q8_0")
    assert kv_types(quantized, stock.model) == ("q8_0", "q8_0")
    assert kv_types(STOCK, stock.model) == ("f16", "bf16")
    assert kv_types(STOCK.for_draft(1024), stock.model) == ("f16", "f16")


def test_cache_on_a_device_has_one_type(target_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its attention does not gain by two types, and may not support them."""

    def value_type(**more: Any) -> str:
        options = replace(STOCK, context=64, threads=1, **more)
        with Model(target_path, options) as model:
            return kv_types(options, model)[1]

    assert value_type(gpu_layers=0) == "bf16"
    monkeypatch.setattr(library, "accelerated", lambda: True)
    assert value_type(gpu_layers=0) == "bf16"
    assert [value_type(gpu_layers=layers) for layers in (-1, 3)] == ["f16"] * 2
    # Named types stay.
    assert value_type(kv_type_k="bf16", kv_type_v="bf16") == "bf16"
