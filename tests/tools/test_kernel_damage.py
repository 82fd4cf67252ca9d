"""What `tools.kernel_damage` damages, and what it takes for a failure."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.support.ggufs import tiny_llama
from tools import kernel_damage


def test_half_of_the_damage_is_in_the_weights(tmp_path: Path) -> None:
    data = tiny_llama(tmp_path / "tiny.gguf").read_bytes()
    weights = data.index(b"output_norm.weight") + 2000
    copies = [kernel_damage.damage(data, random.Random(seed)) for seed in range(200)]
    assert copies[7] == kernel_damage.damage(data, random.Random(7))
    sound = [one[:weights] == data[:weights] and len(one) == len(data) for one in copies]
    assert 70 < sum(sound) < 130
    assert sum(one == data for one in copies) < 10


@pytest.mark.parametrize(
    ("kernels", "stock", "failures"), [(-11, 0, 1), (0, -11, 0), (-11, -11, 0), (0, 0, 0)]
)
def test_a_crash_that_stock_has_as_well_is_none_of_the_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernels: int, stock: int, failures: int
) -> None:
    data = tiny_llama(tmp_path / "tiny.gguf").read_bytes()

    def outcome(way: str, path: Path, folder: Path) -> tuple[int, str]:
        damaged = path.name == "damaged.gguf"
        return ((kernels if way == "auto" else stock) if damaged else 0), ""

    monkeypatch.setattr(kernel_damage, "outcome", outcome)
    monkeypatch.setattr(kernel_damage, "_import_all", lambda: None)
    assert len(kernel_damage.damaged(tmp_path, {"tiny": data}, 1, 0)) == failures
