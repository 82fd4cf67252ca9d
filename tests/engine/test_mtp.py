"""MTP layers are found in the target's own file, and left out where they fail."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import llama_cpp
import pytest

import localspec
from localspec import Engine, NativeError
from tests.engine.conftest import TINY_OPTIONS
from tests.engine.test_heads import CHAIN, KINDS, TOKENS, Told, drafting_of, said
from tests.engine.test_loading_failures import Alive, alive
from tests.support import mtp

__all__ = ["alive"]

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    return Told(mtp.glm(tmp_path_factory.mktemp("glm") / "target.gguf"))


@pytest.fixture(scope="module")
def with_layer(told: Told) -> Path:
    return mtp.glm(told.target.with_name("with.gguf"), follows=told.follows)


def answers_without(engine: Engine, told: Told) -> None:
    assert engine.head_source == ""
    assert said(engine, told.prompts[0])[0] == told.answers[0]


@pytest.mark.parametrize("draft", ["auto", "file", "target"])
def test_the_layer_is_found(told: Told, with_layer: Path, tmp_path: Path, draft: str) -> None:
    """In the model's own file without being asked for, in that file by name, in one of its own."""
    alone = mtp.glm(tmp_path / "head.gguf", follows=told.follows, trunk=False)
    target = with_layer if draft != "file" else mtp.glm(tmp_path / "trunk.gguf", mtp=False)
    named = {"file": alone, "target": with_layer}.get(draft, draft)
    with localspec.load(target, draft=named, options=TINY_OPTIONS) as engine:
        assert engine.head_source == "mtp"
        drafting = drafting_of(KINDS["glm4moe"], CHAIN)
        tokens, accepted = said(engine, told.prompts[0], drafting)
    assert tokens == told.answers[0]
    assert accepted > TOKENS // 2


@pytest.mark.parametrize("without", ["nextn.eh_proj", "attn_q"])
def test_auto_leaves_out_layers_that_are_damaged(
    tmp_path: Path, alive: Alive, told: Told, without: str
) -> None:
    """The model without them is as good."""
    path = mtp.glm(tmp_path / "model.gguf", without=f"blk.2.{without}.weight")
    with localspec.load(path, draft="auto", options=TINY_OPTIONS) as engine:
        assert engine.why_no_draft
        answers_without(engine, told)


@pytest.mark.parametrize("parallel", [1, 3])
@pytest.mark.parametrize("draft", ["auto", "self"])
def test_auto_leaves_out_layers_whose_cache_finds_no_memory(
    monkeypatch: pytest.MonkeyPatch,
    alive: Alive,
    told: Told,
    with_layer: Path,
    parallel: int,
    draft: str,
) -> None:
    """Whoever asked for them is told; of several answers' caches the last one finds none."""
    real, asked = llama_cpp.llama_init_from_model, 0

    def last_fails(*arguments: Any) -> Any:
        nonlocal asked
        asked += 1
        return real(*arguments) if asked <= parallel else None  # the target's is the first

    monkeypatch.setattr(llama_cpp, "llama_init_from_model", last_fails)
    options = replace(TINY_OPTIONS, parallel=parallel)
    if draft == "self":
        with pytest.raises(NativeError, match="shorter one with --ctx"):
            localspec.load(with_layer, draft=draft, options=options)
        return
    with localspec.load(with_layer, draft=draft, options=options) as engine:
        assert asked == parallel + 1
        assert engine.draft_path is None
        assert "the MTP layers of with.gguf fail: No context" in (engine.why_no_draft or "")
        answers_without(engine, told)
