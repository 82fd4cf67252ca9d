"""Heads that do not fit: a sentence and the next step, and nothing is left in memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import localspec
from localspec import DraftMismatch, LocalspecError, ModelInvalid, ModelOptions, NativeError
from localspec.llama import hidden
from tests.engine.test_loading_failures import Alive, alive
from tests.support import ggufs, heads

pytestmark = pytest.mark.nightly

__all__ = ["alive"]

OPTIONS = ModelOptions(context=256, threads=1)


@pytest.mark.parametrize(
    ("made", "kind", "said"),
    [
        ({"width": 512}, DraftMismatch, "512 numbers, and those of .* have 384"),
        ({"layers": (1, 3, 6)}, DraftMismatch, "input of layer 6, .* layers 0 to 5"),
        ({"layers": (1, 3)}, ModelInvalid, "names 2 layers"),
        ({"block_count": 2}, ModelInvalid, "2 layers of its own"),
        ({"target_hidden_size": 0}, ModelInvalid, "lacks eagle3.target_hidden_size"),
        ({"d2t": (5, 9_000)}, ModelInvalid, "d2t names tokens"),
        ({"attention.head_count_kv": 4}, ModelInvalid, "6 attention heads and 4"),
        ({"rope.dimension_count": 66}, ModelInvalid, "rotates 66 numbers of heads"),
        ({"feed_forward_length": 128}, ModelInvalid, "cannot be opened"),
    ],
)
def test_a_head_that_does_not_fit_is_refused(
    tmp_path: Path, alive: Alive, made: dict[str, Any], kind: type[LocalspecError], said: str
) -> None:
    path = heads.eagle(tmp_path / "head.gguf", **made)
    with pytest.raises(kind, match=said) as refused:
        localspec.load(draft=path, options=OPTIONS)
    assert str(refused.value).count(". ") >= 1, "a next step"


def test_a_head_of_another_vocabulary_is_refused(tmp_path: Path, alive: Alive) -> None:
    other = ggufs.tiny_llama(tmp_path / "other.gguf", swap_tokens=(300, 301))
    path = heads.eagle(tmp_path / "head.gguf", other, layers=(0, 1, 1))
    target = ggufs.tiny_llama(tmp_path / "target.gguf")
    with pytest.raises(DraftMismatch, match="another vocabulary: token 300"):
        localspec.load(target, draft=path, options=OPTIONS)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
def test_a_truncated_head_is_refused(tmp_path: Path, alive: Alive, share: float) -> None:
    path = heads.eagle(tmp_path / "head.gguf", output=True)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(ModelInvalid, match=r"Download it again"):
        localspec.load(draft=path, options=OPTIONS)


def test_a_target_without_taps_is_refused_before_anything_is_read(
    tmp_path: Path, alive: Alive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hidden, "TAPPED", frozenset())
    path = heads.eagle(tmp_path / "head.gguf")
    with pytest.raises(NativeError, match=r"architecture llama.*--draft none"):
        localspec.load(draft=path, options=OPTIONS)


@pytest.mark.parametrize("make", [heads.eagle, heads.medusa])
def test_a_head_is_no_model(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    path = make(tmp_path / "head.gguf")
    with pytest.raises(ModelInvalid, match=r"trained head.*--draft"):
        localspec.load(path, options=OPTIONS)
