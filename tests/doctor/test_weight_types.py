"""Which types a quantization has, and parts of a model that stand for the whole."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from localspec import ModelOptions
from localspec.doctor.weight_types import (
    QUANTS,
    layer_bytes,
    own_types,
    part_bytes,
    sample,
    types_in,
    why_not_cut,
    write_part,
)
from localspec.gguf.file import Array, TensorInfo
from localspec.gguf.reader import read_gguf
from localspec.llama.context import Context
from localspec.llama.model import Model
from localspec.llama.quantize import quantize
from tests.support.ggufs import tiny_hybrid, tiny_llama


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Wide enough for types with blocks of 256, deep enough for layers to differ in theirs."""
    path = tmp_path_factory.mktemp("weights") / "source.gguf"
    return tiny_llama(path, dim=256, ff=512, heads=4, layers=9)


@pytest.mark.parametrize("quant", QUANTS)
def test_types_and_size_are_what_the_quantizer_makes(
    source: Path, tmp_path: Path, quant: str
) -> None:
    real = tmp_path / "real.gguf"
    quantize(source, real, quant)
    expected = read_gguf(real)
    found = types_in(read_gguf(source), quant, tmp_path)
    assert found.types == {t.name: t.type for t in expected.tensors}
    assert abs(found.size - real.stat().st_size) < 512  # of keys that the quantizer adds
    again = types_in(expected, quant, tmp_path)
    assert (again.types, again.size) == (found.types, real.stat().st_size)
    assert [path.name for path in tmp_path.iterdir()] == ["real.gguf"]


def test_a_part_is_as_mixed_as_the_whole(source: Path, tmp_path: Path) -> None:
    file = read_gguf(source)
    types = types_in(file, "Q4_K_M", tmp_path)
    layers = [layer_bytes(file, types, [n]) for n in range(9)]
    assert len(set(layers)) == 2, "some layers have more bits in Q4_K_M"
    part = layer_bytes(file, types, sample(file, types, 4)) / 4
    assert part == pytest.approx(layer_bytes(file, types) / 9, rel=0.05)
    assert sample(file, types, 9) == list(range(9))


def test_a_part_opens_and_weighs_what_it_says(source: Path, tmp_path: Path) -> None:
    file = read_gguf(source)
    types = types_in(file, "Q5_K_M", tmp_path)
    layers = sample(file, types, 3)
    part = tmp_path / "part.gguf"
    write_part(part, file, types, layers)
    assert read_gguf(part).weight_bytes == part_bytes(file, types, layers)
    options = ModelOptions(context=64, threads=1)
    with Model(part, options) as model, closing(Context(model, options)) as context:
        assert model.layers == 3
        assert np.isfinite(context.extend(context.filler(4), 4)).all()


def test_numbers_by_layer_go_with_their_layers(source: Path, tmp_path: Path) -> None:
    file = read_gguf(source)
    by_layer = Array(np.arange(9, dtype=np.uint32).tobytes(), 4, 9)
    key = "llama.attention.head_count_kv"
    changed = replace(file, metadata={**file.metadata, key: by_layer}, kinds={**file.kinds, key: 9})
    write_part(tmp_path / "part.gguf", changed, own_types(file), [2, 7])
    found = read_gguf(tmp_path / "part.gguf").array(key)
    assert found is not None
    assert list(found) == [2, 7]


def test_experts_are_chosen_by_lot(source: Path, tmp_path: Path) -> None:
    file = read_gguf(source)
    router = TensorInfo("blk.0.ffn_gate_inp.weight", (256, 8), "F32", 0, 8192)
    output = TensorInfo("output.weight", (256, 32), "F16", 0, 16384)
    mixed = replace(
        file,
        metadata={**file.metadata, "llama.expert_count": 8},
        kinds={**file.kinds, "llama.expert_count": 4},
        tensors=(*file.tensors, router, output),
    )
    path = tmp_path / "part.gguf"
    write_part(path, mixed, own_types(mixed), [0])
    raw, found = path.read_bytes(), {t.name: t for t in read_gguf(path).tensors}
    for name, kind in (("token_embd.weight", np.float16), (router.name, np.float32)):
        start = found[name].offset
        rows = np.frombuffer(raw[start : start + found[name].size], kind)
        rows = rows.reshape(found[name].shape[::-1])[:8]
        assert len(np.unique(rows, axis=0)) == 8


def test_what_has_no_part_that_stands_for_it(tmp_path: Path, source: Path) -> None:
    assert why_not_cut(read_gguf(source)) is None
    assert why_not_cut(read_gguf(tiny_hybrid(tmp_path / "h.gguf"))) == "its layers differ"
    file = read_gguf(source)
    mixed = replace(file, metadata={**file.metadata, "llama.expert_count": 8})
    assert "experts" in (why_not_cut(mixed) or "")
