"""`exact`: answers are plain decoding's, whatever drafts, greedy and with a seed."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import llama_cpp
import numpy as np
import pytest

import localspec
from localspec import Drafting, Engine, ModelOptions, SamplingParams, UsageError, paths
from localspec.decoding.sampling import Rows
from localspec.llama import library
from localspec.llama.context import Context
from localspec.llama.context_params import context_params
from localspec.llama.model import Model
from localspec.loading.same_bits import keep_same_bits, largest_equal_pass

OPTIONS = ModelOptions(context=1024, threads=2, exact=True)
STORY = "Once upon a time there was a fox who lived in the wood with a bird and a frog. " * 16
"""More than 256 tokens: llama.cpp's kernels for long texts are at work behind it."""
WAYS = {
    "ngram": Drafting(drafter="ngram"),
    "model": Drafting(drafter="model", depth=4),
    "tree": Drafting(drafter="model", depth=3, width=3),
    "auto": Drafting(),
}


@pytest.fixture(scope="module")
def exact() -> Iterator[Engine]:
    with localspec.load(options=OPTIONS) as engine:
        yield engine


def said(engine: Engine, drafting: Drafting, sampling: SamplingParams) -> list[int]:
    engine.clear()
    stream = engine.stream(STORY, max_tokens=48, sampling=sampling, drafting=drafting)
    with stream:
        return [token for chunk in stream for token in chunk.token_ids]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_answers_are_plain_decodings(exact: Engine, temperature: float) -> None:
    sampling = SamplingParams(temperature=temperature, seed=7)
    plain = said(exact, Drafting(drafter="none"), sampling)
    assert len(plain) > 20
    for name, way in WAYS.items():
        assert said(exact, way, sampling) == plain, name


def test_sampled_drafts_are_accepted_by_matching(exact: Engine) -> None:
    sampling = SamplingParams(temperature=0.8, seed=7)
    stats = exact.generate(STORY, max_tokens=48, sampling=sampling, drafting=WAYS["model"]).stats
    assert stats.rule == "match"
    assert stats.lossless
    assert stats.accepted > 0


@pytest.mark.parametrize("rule", ["block", "token", "typical"])
def test_another_rule_is_refused(exact: Engine, rule: str) -> None:
    with pytest.raises(UsageError, match="rule 'match', not"):
        exact.generate("Hello", max_tokens=1, drafting=Drafting(rule=rule))


def test_passes_that_round_the_same_are_more_than_without(exact: Engine) -> None:
    """An F16 cache of 512 cells has a kernel of its own for one token."""
    with Model(exact.model.path, OPTIONS) as model:
        largest = []
        for options in (OPTIONS, ModelOptions(context=1024, threads=2, flash_attention="on")):
            context = Context(model, options)
            largest.append(largest_equal_pass(context))
            assert context.tokens == []
            context.close()
    assert largest[0] > largest[1] == 1
    assert exact._limits.max_draft == largest[0] - 1
    assert exact._limits.max_leaves == 1


class Rounding:
    """A cache whose passes over four tokens or more round otherwise."""

    recurrent = False
    capacity = 512
    max_draft = 64
    max_leaves = 16

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.passes = 0

    def filler(self, count: int) -> list[int]:
        return list(range(count))

    def clear(self) -> None:
        self.tokens.clear()

    def truncate(self, length: int) -> None:
        del self.tokens[length:]

    def extend(self, tokens: Sequence[int], outputs: int = 1) -> Rows:
        self.passes += 1
        rows = np.array([[token, token / 3] for token in tokens[-outputs:]], np.float32)
        self.tokens += tokens
        return rows + np.float32(1e-4) if len(tokens) > 3 else rows


def test_drafts_end_where_passes_begin_to_round_otherwise_and_that_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path))
    cache = Rounding()
    keep_same_bits(cast("Context", cache), {"of": "a test"})
    assert (cache.max_draft, cache.max_leaves) == (2, 1)
    again = Rounding()
    keep_same_bits(cast("Context", again), {"of": "a test"})
    assert (again.max_draft, again.passes) == (2, 0)
    (kept,) = (paths.cache_folder() / "same-bits").glob("*.json")
    kept.write_text(json.dumps({"identity": {"of": "a test"}, "largest": "many"}))
    keep_same_bits(cast("Context", again), {"of": "a test"})
    assert (again.max_draft, again.passes > 0) == (2, True)


def test_where_no_pass_rounds_the_same_nothing_is_drafted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path))
    monkeypatch.setattr("localspec.loading.same_bits.largest_equal_pass", lambda context: 1)
    with localspec.load(options=ModelOptions(context=256, threads=1, exact=True)) as engine:
        for drafting in (Drafting(), WAYS["model"]):
            stats = engine.generate("Once upon a time", max_tokens=8, drafting=drafting).stats
            assert stats.drafted == 0
            assert any("no pass over several tokens" in reason for reason in stats.reasons)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (SimpleNamespace(flash_attention="off"), "needs flash attention"),
        (SimpleNamespace(parallel=2), "one at a time"),
    ],
)
def test_what_excludes_exact_is_told(said: SimpleNamespace, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        ModelOptions(exact=True, **vars(said))


def test_the_types_that_were_asked_for_stay_unless_they_round_otherwise() -> None:
    kept = ModelOptions(exact=True, kv_type_k="q8_0", kv_type_v="q8_0")
    assert (kept.kv_type_k, kept.kv_type_v) == ("q8_0", "q8_0")
    assert (OPTIONS.kv_type_k, OPTIONS.kv_type_v) == ("f16", "bf16")
    draft = OPTIONS.for_draft(1024)
    assert not draft.exact
    assert draft.kv_type_v == "f16"


def test_on_a_device_the_cache_is_of_one_type(
    target_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its attention has no use for two, and may not have them at all."""

    def value_type(**more: Any) -> int:
        options = ModelOptions(context=64, threads=1, exact=True, **more)
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
