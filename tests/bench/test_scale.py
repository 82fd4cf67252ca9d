"""A scaled model computes what the small one computes, and appears only when it is complete."""

import shutil
import sys
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from localspec import paths
from localspec.bench.scale import PAIRS, ScaledPair, scale_model, scaled_pair
from localspec.bench.scaled_gguf import ModelShape
from localspec.errors import LocalspecError, UsageError
from localspec.llama.context import Context
from localspec.llama.model import Model
from localspec.llama.options import ModelOptions
from tests.support import ggufs, packages
from tests.support.patches import files_of_at_most

pytestmark = pytest.mark.nightly

TEXT = "<|user|>Tell me a story about a fox.<|end|><|assistant|>Once upon a time, there was a"
OPTIONS = ModelOptions(context=256, threads=1)
SMALL = ModelShape(128, 3, 256, "F16")


def logits(path: Path) -> np.ndarray:
    """The logits after every token of TEXT."""
    with Model(path, OPTIONS) as model, closing(Context.open(model, OPTIONS)) as context:
        tokens = model.vocabulary.tokenize(TEXT, special=True, add_bos=True)
        return np.stack([context.extend([token])[-1].copy() for token in tokens])


def assert_same_function(rows: np.ndarray, expected: np.ndarray) -> None:
    """Activations are rounded to 8 bits against other maxima: near-ties may flip, no others."""
    best, second = np.sort(expected)[:, ::-1][:, :2].T
    clear = best - second > 0.3
    assert clear.mean() > 0.5
    assert (rows.argmax(axis=1) == expected.argmax(axis=1))[clear].all()
    assert float(np.abs(rows - expected).max()) < 0.5


@pytest.mark.parametrize("quant", ["F16", "Q8_0"])
def test_scaled_target_computes_the_same(tmp_path: Path, target_path: Path, quant: str) -> None:
    path = tmp_path / "new" / "big.gguf"
    scale_model(target_path, path, ModelShape(768, 8, 2048, quant))
    assert_same_function(logits(path), logits(target_path))
    assert [file.name for file in path.parent.iterdir()] == ["big.gguf"]


@pytest.fixture
def small_pairs(monkeypatch: pytest.MonkeyPatch, home: Path) -> Path:
    """Replace pair A by small shapes; return the cache folder."""
    pair = ScaledPair(ModelShape(384, 7, 1024, "Q8_0"), ModelShape(192, 4, 512, "Q4_0"))
    monkeypatch.setitem(PAIRS, "A", pair)
    return paths.cache_folder() / "scale"


def test_scaled_pairs_are_cached(small_pairs: Path) -> None:
    target, draft = scaled_pair("1b")
    written = {path: path.stat().st_mtime_ns for path in (target, draft)}
    assert {*small_pairs.iterdir()} == written.keys()
    assert target.name.startswith("tale-13m-384x7-ff1024-Q8_0-")
    assert draft.name.startswith("tale-3m-192x4-ff512-Q4_0-")
    assert scaled_pair("a") == scaled_pair("A") == (target, draft)
    assert {path: path.stat().st_mtime_ns for path in (target, draft)} == written


def test_full_disk_leaves_nothing(small_pairs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with files_of_at_most(1 << 20), pytest.raises(LocalspecError, match="File too large"):
        scaled_pair("A")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(total=9, free=1_000_000))
    with pytest.raises(LocalspecError, match="set LOCALSPEC_HOME to another folder"):
        scaled_pair("A")
    assert not list(small_pairs.iterdir())


def test_impossible_requests(tmp_path: Path, target_path: Path) -> None:
    for source, shape, why in (
        (target_path, ModelShape(384, 6, 1024, "Q9"), "no quantization 'Q9'. Choose from .*Q4_K_M"),
        (target_path, ModelShape(384, 6, 1000, "Q8_0"), "multiple of 128"),
        (tmp_path / "none.gguf", SMALL, r"none\.gguf"),
    ):
        with pytest.raises(LocalspecError, match=why):
            scale_model(source, tmp_path / "big.gguf", shape)
    assert not list(tmp_path.iterdir())


def test_missing_gguf_package(small_pairs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(UsageError, match=r"pip install '.\[bench\]'"):
        scaled_pair("A")


@pytest.mark.parametrize("name", ["R0", "R-LONG"])
def test_pairs_of_a_packaged_model(home: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    installed = packages.install(home / "site", monkeypatch)
    ggufs.tiny_llama(installed, layers=3)
    monkeypatch.setitem(PAIRS, "R0", ScaledPair(SMALL, None, real=True))
    monkeypatch.setitem(PAIRS, "R-long", ScaledPair(SMALL, None, real=True))
    target, draft = scaled_pair(name)
    assert draft == installed
    # Random weights, f16 in both: no rounding, but many near-ties.
    assert float(np.abs(logits(target) - logits(installed)).max()) < 0.05


def test_untied_embeddings_biases_and_rotations(tmp_path: Path) -> None:
    source = ggufs.tiny_llama(tmp_path / "small.gguf", dim=64, layers=2, more=True)
    big = tmp_path / "big.gguf"
    scale_model(source, big, SMALL)
    assert float(np.abs(logits(big) - logits(source)).max()) < 0.05
    assert float(np.abs(logits(source) - logits(ggufs.tiny_llama(tmp_path / "p.gguf"))).max()) > 1
