"""What `-d self` may mean, and which models can do without layers."""

from __future__ import annotations

from pathlib import Path

import pytest

from localspec.errors import UsageError
from localspec.gguf.reader import read_gguf
from localspec.self_draft.recipe import Recipe, Wish, smaller_quantizations, why_all_layers
from tests.support import ggufs


def test_references() -> None:
    assert Wish.parse("self") == Wish()
    assert Wish.parse("self:q4_0") == Wish(quant="Q4_0")
    assert Wish.parse("self:4") == Wish(count=4)
    assert Wish.parse("./self") is None
    assert Wish.parse(Path("selfish.gguf")) is None


@pytest.mark.parametrize("reference", ["self:", "self:0", "self:Q9_9", "self:-4"])
def test_what_means_nothing(reference: str) -> None:
    with pytest.raises(UsageError, match=r"Write self for what pays, self:Q4_0"):
        Wish.parse(reference)


def test_words() -> None:
    assert Recipe("Q4_0").words == "in Q4_0"
    assert Recipe(None, (3,)).words == "without layer 3"
    assert Recipe("Q4_0", (3, 4, 7)).words == "in Q4_0 without layers 3, 4 and 7"
    assert Recipe("Q4_0", (3, 4)).label == "Q4_0-without-2"


def test_layers_of_other_kinds_stay(tmp_path: Path, target_path: Path) -> None:
    mamba = read_gguf(ggufs.tiny_mamba(tmp_path / "mamba.gguf"))
    hybrid = read_gguf(ggufs.tiny_hybrid(tmp_path / "hybrid.gguf"))
    short = read_gguf(ggufs.tiny_llama(tmp_path / "short.gguf", layers=3))
    assert why_all_layers(mamba) == "layers of mamba keep a state that the others build on"
    assert "keep a state" in (why_all_layers(hybrid) or "")
    assert why_all_layers(short) == "it has no more than 3 of them"
    assert why_all_layers(read_gguf(target_path)) is None


def test_the_next_quantization(tmp_path: Path, target_path: Path) -> None:
    assert smaller_quantizations(read_gguf(target_path)) == ("Q4_0",)
    from localspec.llama.quantize import quantize

    quantize(target_path, tmp_path / "small.gguf", "Q4_0", 1, again=True)
    assert smaller_quantizations(read_gguf(tmp_path / "small.gguf")) == ("Q2_K",)
    whole = read_gguf(ggufs.tiny_llama(tmp_path / "whole.gguf"))
    assert smaller_quantizations(whole) == ("Q4_0", "Q8_0")
