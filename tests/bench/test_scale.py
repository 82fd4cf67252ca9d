"""A scaled model computes what the small one computes, and appears only when it is complete."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from localspec import paths
from localspec.bench import scaled_gguf
from localspec.bench.scale import PAIRS, ModelShape, ScaledPair, scale_model, scaled_pair
from localspec.errors import LocalspecError, ModelInvalid, UsageError
from localspec.llama.context import Context
from localspec.llama.model import Model
from localspec.llama.options import ModelOptions
from tests.support import ggufs

TEXT = "<|user|>Tell me a story about a fox.<|end|><|assistant|>Once upon a time, there was a"
OPTIONS = ModelOptions(context=256, threads=1)


def logits(path: Path) -> np.ndarray:
    """After every token of TEXT."""
    with Model(path, OPTIONS) as model:
        context = Context(model, OPTIONS)
        tokens = model.vocabulary.tokenize(TEXT, special=True, add_bos=True)
        rows = np.stack([context.extend([token])[-1].copy() for token in tokens])
        context.close()
    return rows


def same_function(rows: np.ndarray, expected: np.ndarray) -> None:
    """Activations are rounded to 8 bits against other maxima: near-ties may flip, no others."""
    best, second = np.sort(expected)[:, ::-1][:, :2].T
    clear = best - second > 0.3
    assert clear.mean() > 0.5
    assert (rows.argmax(axis=1) == expected.argmax(axis=1))[clear].all()
    assert float(np.abs(rows - expected).max()) < 0.5


@pytest.mark.parametrize("quant", ["F16", "Q8_0"])
def test_target_says_the_same(tmp_path: Path, target_path: Path, quant: str) -> None:
    path = tmp_path / "new" / "big.gguf"
    scale_model(target_path, path, dim=768, layers=8, feed_forward=2048, quant=quant)
    same_function(logits(path), logits(target_path))
    assert [file.name for file in path.parent.iterdir()] == ["big.gguf"]


def test_draft_says_the_same(tmp_path: Path, draft_path: Path) -> None:
    path = tmp_path / "big.gguf"
    scale_model(draft_path, path, dim=384, layers=4, feed_forward=1024, quant="q8_0")
    same_function(logits(path), logits(draft_path))
    with Model(path, OPTIONS) as model:
        assert model.name == "big"
        assert model.metadata["general.file_type"] == "7"
        assert model.metadata["llama.attention.head_count"] == "6"


@pytest.fixture
def small_pairs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Pair A of small shapes, in a cache folder of its own."""
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path))
    pair = ScaledPair(ModelShape(384, 7, 1024, "Q8_0"), ModelShape(192, 4, 512, "Q4_0"), "small")
    monkeypatch.setitem(PAIRS, "A", pair)
    return paths.cache_folder() / "scale"


def test_pairs_are_written_once(small_pairs: Path) -> None:
    target, draft = scaled_pair("1b")
    written = {path: path.stat().st_mtime_ns for path in (target, draft)}
    assert {*small_pairs.iterdir()} == written.keys()
    assert target.name.startswith("tale-13m-384x7-ff1024-Q8_0-")
    assert draft.name.startswith("tale-3m-192x4-ff512-Q4_0-")
    assert scaled_pair("a") == scaled_pair("A") == (target, draft)
    assert {path: path.stat().st_mtime_ns for path in (target, draft)} == written


def test_unknown_pair() -> None:
    with pytest.raises(UsageError, match=r"no scaled pair '7b'. Choose from 1b, A, B, C"):
        scaled_pair("7b")


def fails(error: BaseException) -> Callable[..., None]:
    def write(*_: object) -> None:
        raise error

    return write


def test_full_disk_leaves_nothing(small_pairs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr("gguf.GGUFWriter.write_tensor_data", fails(full))
    with pytest.raises(LocalspecError, match="No space left on device"):
        scaled_pair("A")
    assert not list(small_pairs.iterdir())


def test_interrupt_leaves_nothing(small_pairs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("localspec.llama.quantize.quantize", fails(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        scaled_pair("A")
    assert not list(small_pairs.iterdir())


def test_leftovers_of_killed_processes_go(small_pairs: Path) -> None:
    abandoned, busy = small_pairs / "making-old", small_pairs / "making-new"
    for folder in (abandoned, busy):
        folder.mkdir(parents=True)
    long_ago = time.time() - 7200
    os.utime(abandoned, (long_ago, long_ago))
    scaled_pair("A")
    assert not abandoned.exists()
    assert busy.exists()


@pytest.mark.parametrize(
    ("dim", "layers", "feed_forward"),
    [(400, 6, 1024), (320, 6, 1024), (384, 5, 1024), (384, 6, 1000), (448, 6, 1024)],
)
def test_shapes_that_do_not_fit(
    tmp_path: Path, target_path: Path, dim: int, layers: int, feed_forward: int
) -> None:
    with pytest.raises(UsageError, match="a multiple of 128"):
        scale_model(
            target_path,
            tmp_path / "big.gguf",
            dim=dim,
            layers=layers,
            feed_forward=feed_forward,
            quant="F16",
        )
    assert not list(tmp_path.iterdir())


def test_unknown_quantization(tmp_path: Path, draft_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no quantization 'Q9'. Choose from .*Q4_K_M"):
        scale_model(
            draft_path, tmp_path / "big.gguf", dim=192, layers=3, feed_forward=512, quant="Q9"
        )
    assert not list(tmp_path.iterdir())


def test_other_files(tmp_path: Path) -> None:
    shape = {"dim": 192, "layers": 3, "feed_forward": 512}
    text = tmp_path / "text.gguf"
    text.write_text("no model")
    with pytest.raises(ModelInvalid, match="not a complete GGUF"):
        scale_model(text, tmp_path / "big.gguf", **shape, quant="F16")
    other = ggufs.tiny_llama(tmp_path / "bert.gguf")
    other.write_bytes(other.read_bytes().replace(b"llama", b"blama", 1))
    with pytest.raises(ModelInvalid, match="architecture blama"):
        scale_model(other, tmp_path / "big.gguf", **shape, quant="F16")


def test_without_gguf(small_pairs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> object:
        raise ImportError(name)

    monkeypatch.setattr(scaled_gguf, "import_module", missing)
    with pytest.raises(UsageError, match=r"pip install 'localspec\[bench\]'"):
        scaled_pair("A")
