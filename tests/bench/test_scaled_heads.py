"""A scaled head says behind its scaled target what it said behind the small one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import localspec
from localspec import Drafting, ModelInvalid, ModelOptions, SamplingParams, paths
from localspec.bench.benchmark import BenchPair, _written
from localspec.bench.scale import PAIRS, ScaledPair, scale_model
from localspec.bench.scaled_gguf import ModelShape
from localspec.bench.scaled_heads import write_head
from localspec.distill import trained_heads, weights
from localspec.distill.weights import Trained
from localspec.gguf.reader import read_gguf

pytestmark = pytest.mark.nightly

PROMPTS = ("Tell me a story about a fox.", "The old mill by the river", "A letter to my sister")
TRAINED = Trained("nobody", 0.5, "head")


def eagle(target: Path, path: Path) -> Path:
    """Neither half of what it reads is nothing, and all three states count."""
    shape, there = weights.read(target)
    made = trained_heads.initial_eagle(there, shape, seed=3)
    random = np.random.Generator(np.random.PCG64(5))
    width = shape.width
    early = random.standard_normal((width, 2 * width)).astype(np.float32) * np.float32(0.02)
    made["fc.weight"][:, : 2 * width] = early
    made["blk.0.attn_norm.weight"] *= np.float32(1.5)
    layers = trained_heads.target_layers(shape.layers)
    trained_heads.write_eagle(path, made, shape, layers, read_gguf(target), TRAINED, weights.F16)
    return path


def medusa(target: Path, path: Path) -> Path:
    shape, there = weights.read(target)
    made = trained_heads.initial_medusa(there, shape, heads=2)
    random = np.random.Generator(np.random.PCG64(5))
    for name, values in made.items():
        if ".blk." in name:
            values += random.standard_normal(values.shape).astype(np.float32) * np.float32(0.05)
    trained_heads.write_medusa(path, made, shape, TRAINED, "")
    return path


def drafted(target: Path, draft: Path, source: str) -> list[list[int]]:
    """Tokens that were drafted, step by step."""
    options = ModelOptions(context=256, threads=1)
    drafting = Drafting(drafter=source, depth=2)
    found = []
    with localspec.load(target, draft=draft, options=options) as engine:
        for prompt in PROMPTS:
            greedy = SamplingParams(temperature=0)
            stream = engine.stream(prompt, max_tokens=24, sampling=greedy, drafting=drafting)
            steps = [chunk.step for chunk in stream]
            found += [list(step.draft.tree.tokens) for step in steps if step and step.drafted]
    return found


@pytest.mark.parametrize(("make", "source"), [(eagle, "eagle"), (medusa, "medusa")])
def test_a_scaled_head_drafts_the_same(
    make: Callable[[Path, Path], Path], source: str, target_path: Path, tmp_path: Path
) -> None:
    small = make(target_path, tmp_path / "head.gguf")
    big, scaled = tmp_path / "big.gguf", tmp_path / "scaled.gguf"
    scale_model(target_path, big, ModelShape(768, 9, 2048, "F16"))
    write_head(small, scaled, big)
    expected = drafted(target_path, small, source)
    assert len({tuple(tokens) for tokens in expected}) > 20, "it says this and that"
    found = drafted(big, scaled, source)
    # A near-tie of the target's or the head's may flip, and what follows with it.
    same = sum(a == b for a, b in zip(found, expected, strict=False))
    assert same > 0.8 * len(expected), (same, len(expected))


def test_a_benchmark_scales_a_head_along(
    target_path: Path, draft_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "home"))
    pair = ScaledPair(ModelShape(768, 7, 1024, "Q8_0"), ModelShape(192, 4, 512, "Q4_0"))
    monkeypatch.setitem(PAIRS, "A", pair)
    head = medusa(target_path, tmp_path / "head.gguf")
    written = _written(BenchPair(name="A", scale="A", draft=str(head)), lambda _: None)
    assert read_gguf(Path(written[1])).own_integer("embedding_length") == 768
    assert Path(written[1]).parent == paths.cache_folder() / "scale"
    model = _written(BenchPair(name="A", scale="A", draft=str(draft_path)), lambda _: None)
    assert model == (written[0], str(draft_path)), "a model drafts as it is"
    own = _written(BenchPair(name="A", scale="A"), lambda _: None)
    assert own[0] == written[0]
    assert own[1] not in (written[1], str(draft_path))


def test_what_is_no_head_of_it_is_refused(
    target_path: Path, draft_path: Path, tmp_path: Path
) -> None:
    head = medusa(target_path, tmp_path / "head.gguf")
    with pytest.raises(ModelInvalid, match="architecture llama"):
        write_head(draft_path, tmp_path / "a.gguf", target_path)
    with pytest.raises(ModelInvalid, match="wide"):
        write_head(head, tmp_path / "a.gguf", draft_path)
    assert not (tmp_path / "a.gguf").exists()
