"""Timing other quantizations: what comes out, and that nothing is left behind."""

from __future__ import annotations

import shutil
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path

import pytest

from localspec import ModelOptions, paths
from localspec.doctor import type_costs
from localspec.doctor.checkup import SIZES
from localspec.doctor.type_costs import measure_types
from localspec.doctor.weight_types import QUANTS
from localspec.gguf.file import GGUFFile
from localspec.gguf.reader import read_gguf
from tests.support.ggufs import tiny_hybrid, tiny_llama
from tests.support.homes import move_to

OPTIONS = ModelOptions(threads=1)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    move_to(tmp_path, monkeypatch)
    yield
    assert not list(paths.cache_folder().glob("types-*/*")), "temporary files are left"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> GGUFFile:
    path = tmp_path_factory.mktemp("models") / "m.gguf"
    return read_gguf(tiny_llama(path, dim=256, ff=512, heads=4, layers=8))


@pytest.mark.parametrize("large", [1, 1 << 30])
def test_every_type_is_timed(file: GGUFFile, monkeypatch: pytest.MonkeyPatch, large: int) -> None:
    """From two of the layers and one, and from all of them."""
    monkeypatch.setattr(type_costs, "LARGE", large)
    told: list[str] = []
    found = measure_types(file, OPTIONS, 300.0, tell=told.append)
    assert found.why == ""
    assert found.costs[0].quant == "F16"
    assert {cost.quant for cost in found.costs[1:]} == set(QUANTS)
    assert [cost.own for cost in found.costs] == [True] + 6 * [False]
    assert [cost.size for cost in found.costs] == sorted(
        (cost.size for cost in found.costs), reverse=True
    ), "the one of the most similar size comes first"
    for cost in found.costs:
        assert set(cost.relative) == set(SIZES)
        assert all(0.0 < ratio < 50.0 for ratio in cost.relative.values())
    assert set(found.costs[0].relative.values()) == {1.0}
    assert len(told) == 7
    assert not list(paths.cache_folder().glob("types-*"))


def test_what_was_measured_before_an_interrupt_counts(file: GGUFFile) -> None:
    told: list[str] = []
    found = measure_types(file, OPTIONS, 300.0, tell=told.append, stopped=lambda: len(told) > 3)
    assert len(found.costs) == 3
    assert found.why == "it was interrupted"
    at_once = measure_types(file, OPTIONS, 300.0, stopped=lambda: True)
    assert (at_once.costs, at_once.why) == ((), "it was interrupted")


def test_no_time(file: GGUFFile) -> None:
    found = measure_types(file, OPTIONS, 0.0)
    assert (found.costs, found.why) == ((), "there was no time for more")


def test_a_full_disk(file: GGUFFile, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(1 << 40, 1 << 40, 4096))
    found = measure_types(file, OPTIONS, 300.0)
    assert (found.costs, found.why) == ((), "there is not enough memory or disk beside it")


def test_a_folder_that_cannot_be_written(file: GGUFFile) -> None:
    paths.cache_folder().parent.mkdir(parents=True, exist_ok=True)
    paths.cache_folder().write_text("a file where the folder should be")
    found = measure_types(file, OPTIONS, 300.0)
    assert found.costs == ()
    assert "cannot be written" in found.why


def test_layers_that_differ_are_timed_together_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hybrid = read_gguf(tiny_hybrid(tmp_path / "h.gguf"))
    assert measure_types(hybrid, OPTIONS, 300.0).why == ""
    monkeypatch.setattr(type_costs, "LARGE", 1)
    assert measure_types(hybrid, OPTIONS, 300.0).why == "its layers differ"


def test_what_a_killed_process_left_is_removed(file: GGUFFile) -> None:
    left = paths.cache_folder() / "types-999999999-abc"
    left.mkdir(parents=True)
    (left / "Q4_0-2.gguf").write_bytes(b"GGUF")
    measure_types(file, OPTIONS, 0.0)
    assert not left.exists()
