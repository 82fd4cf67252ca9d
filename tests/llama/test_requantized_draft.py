"""The requantized copy of a draft model: made once where it may help, and never in the way."""

from __future__ import annotations

import json
import logging
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from localspec import ModelOptions
from localspec.errors import NativeError
from localspec.identity import file_identity
from localspec.llama import library, requantized_draft
from localspec.llama.context import Context
from localspec.llama.model import Model
from localspec.llama.quantize import quantize
from localspec.llama.requantized_draft import Copy, CopyVerdict, Pair
from localspec.llama.time_ratio import time_ratio

OPTIONS = ModelOptions(threads=1, gpu_layers=0)
RIGHT = (0.95, 0.93)
"""How often original and copy are right, for a verdict."""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def small_ones_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """The embedded draft model of 3 MB is large enough here."""
    monkeypatch.setattr(requantized_draft, "SMALLEST", 1 << 20)


@pytest.fixture
def model(draft_path: Path) -> Iterator[Model]:
    with Model(draft_path, OPTIONS) as opened:
        yield opened


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return pair_with(tmp_path / "target.gguf")


def pair_with(target: Path) -> Pair:
    """With a target that is not opened."""
    target.write_bytes(target.name.encode())
    return Pair(target, f"key of {target.name}")


def takes(monkeypatch: pytest.MonkeyPatch, ratio: float) -> None:
    """The copy takes so much of the original's time on this machine."""
    monkeypatch.setattr(requantized_draft, "time_ratio", lambda *_: ratio)


def used(pair: Pair, copy: Copy) -> None:
    """A pair was found to gain by it."""
    requantized_draft.keep_verdict(copy.path, pair, CopyVerdict(copy, RIGHT))


def not_used(pair: Pair, copy: Copy) -> None:
    """A pair was found to lose by it."""
    requantized_draft.keep_verdict(copy.path, pair, CopyVerdict(None, RIGHT))


def known(path: Path, pair: Pair, options: ModelOptions = OPTIONS) -> CopyVerdict | None:
    return requantized_draft.known_verdict(path, pair, options)


def count_quantizations(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    made: list[Path] = []

    def counted(source: Path, destination: Path, *arguments: Any, **options: Any) -> None:
        made.append(source)
        quantize(source, destination, *arguments, **options)

    monkeypatch.setattr(requantized_draft, "quantize", counted)
    return made


def files(home: Path) -> list[str]:
    folder = home / "cache" / "drafts"
    return sorted(path.suffix for path in folder.iterdir()) if folder.exists() else []


@pytest.mark.usefixtures("small_ones_count")
def test_faster_copy_is_made_once_and_remembered(
    model: Model, pair: Pair, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    takes(monkeypatch, 0.6)
    made = count_quantizations(monkeypatch)
    assert known(model.path, pair) is None
    copy = requantized_draft.faster_copy(model, OPTIONS)
    assert copy is not None
    assert copy.ratio == 0.6
    assert copy.path.stat().st_size < 0.85 * model.path.stat().st_size
    assert files(home) == [".gguf", ".json"]
    assert known(model.path, pair) is None, "what it is worth to the pair is not known yet"
    used(pair, copy)
    assert known(model.path, pair) == CopyVerdict(copy, RIGHT)
    assert requantized_draft.faster_copy(model, OPTIONS) == copy
    assert made == [model.path]
    with Model(copy.path, OPTIONS) as small:
        assert small.vocabulary.size == model.vocabulary.size
        context = Context(small, ModelOptions(context=64, threads=1))
        assert context.extend([1, 2, 3]).shape == (1, model.vocabulary.size)
        context.close()


@pytest.mark.usefixtures("small_ones_count")
@pytest.mark.parametrize("ratio", [requantized_draft.WORTHWHILE + 0.01, 1.0, 3.0])
def test_copy_that_is_not_faster_is_dropped_and_not_made_again(
    model: Model, pair: Pair, home: Path, ratio: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    takes(monkeypatch, ratio)
    made = count_quantizations(monkeypatch)
    for _ in range(2):
        assert requantized_draft.faster_copy(model, OPTIONS) is None
        assert known(model.path, pair) == CopyVerdict(None), "nothing is left to find out"
    assert len(made) == 1
    assert files(home) == [".json"]


@pytest.mark.usefixtures("small_ones_count")
def test_each_pair_has_its_own_verdict_and_the_last_one_takes_the_copy_along(
    model: Model, pair: Pair, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    takes(monkeypatch, 0.6)
    made = count_quantizations(monkeypatch)
    other = pair_with(tmp_path / "other.gguf")
    copy = requantized_draft.faster_copy(model, OPTIONS)
    assert copy is not None
    used(pair, copy)
    not_used(other, copy)
    assert known(model.path, pair) == CopyVerdict(copy, RIGHT)
    assert known(model.path, other) == CopyVerdict(None, RIGHT)
    assert files(home) == [".gguf", ".json"], "one pair uses it"
    not_used(pair, copy)
    assert files(home) == [".json"]
    assert known(model.path, pair) == known(model.path, other) == CopyVerdict(None, RIGHT)
    # A third pair has it made again; how fast it is was measured.
    takes(monkeypatch, 3.0)
    assert requantized_draft.faster_copy(model, OPTIONS) == copy
    assert len(made) == 2


@pytest.mark.usefixtures("small_ones_count")
@pytest.mark.parametrize("gone", [True, False])
def test_target_that_is_gone_or_another_file_uses_no_copy(
    gone: bool,
    model: Model,
    pair: Pair,
    tmp_path: Path,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    takes(monkeypatch, 0.6)
    copy = requantized_draft.faster_copy(model, OPTIONS)
    assert copy is not None
    used(pair, copy)
    if gone:
        pair.target.unlink()
    else:
        pair.target.write_bytes(b"another one of this name")
    not_used(pair_with(tmp_path / "other.gguf"), copy)
    assert files(home) == [".json"]
    assert known(model.path, pair) is None


@pytest.mark.usefixtures("small_ones_count")
def test_timing_compares_the_two(model: Model, tmp_path: Path) -> None:
    """What it finds depends on the machine; that it is a sane figure does not."""
    copy = tmp_path / "copy.gguf"
    quantize(model.path, copy, "Q4_0", 1, again=True)
    assert 0.05 < time_ratio(model, copy, OPTIONS) < 20.0


def test_timing_puts_the_copy_where_the_original_is(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy on a GPU would always be faster than an original that was kept off it."""
    opened: list[ModelOptions] = []

    class Noted(Model):
        def __init__(self, path: Path, options: ModelOptions) -> None:
            opened.append(options)
            super().__init__(path, options)

    copy = tmp_path / "copy.gguf"
    quantize(model.path, copy, "Q4_0", 1, again=True)
    monkeypatch.setattr("localspec.llama.time_ratio.Model", Noted)
    time_ratio(model, copy, replace(OPTIONS, gpu_layers=0))
    assert [options.gpu_layers for options in opened] == [0]


def test_small_model_is_left_alone(model: Model, home: Path) -> None:
    assert model.path.stat().st_size < requantized_draft.SMALLEST
    assert requantized_draft.faster_copy(model, OPTIONS) is None
    assert files(home) == []


def test_huge_model_is_left_alone(
    model: Model, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requantized_draft, "SMALLEST", 1)
    monkeypatch.setattr(requantized_draft, "LARGEST", 1 << 20)
    assert requantized_draft.faster_copy(model, OPTIONS) is None
    assert files(home) == []


@pytest.mark.usefixtures("small_ones_count")
@pytest.mark.parametrize(
    ("quant", "considered"),
    [("Q4_1", True), ("Q4_K_M", True), ("Q5_0", True), ("Q4_0", False), ("IQ4_NL", False)],
)
def test_which_types_a_copy_may_be_faster_than(
    quant: str,
    considered: bool,
    draft_path: Path,
    tmp_path: Path,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    takes(monkeypatch, 0.5)
    path = tmp_path / "draft.gguf"
    quantize(draft_path, path, quant, 1, again=True)
    with Model(path, OPTIONS) as model:
        assert (requantized_draft.faster_copy(model, OPTIONS) is not None) is considered
    assert files(home) == ([".gguf", ".json"] if considered else [])


@pytest.mark.usefixtures("small_ones_count")
def test_it_can_be_turned_off(
    model: Model, pair: Pair, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    takes(monkeypatch, 0.5)
    off = replace(OPTIONS, requantize_draft=False)
    assert requantized_draft.faster_copy(model, off) is None
    assert files(home) == []
    copy = requantized_draft.faster_copy(model, OPTIONS)
    assert copy is not None
    used(pair, copy)
    assert known(model.path, pair) is not None
    assert known(model.path, pair, off) is None


@pytest.mark.usefixtures("small_ones_count")
@pytest.mark.parametrize(("layers", "applies"), [(-1, False), (8, False), (0, True)])
def test_layers_on_a_gpu_need_no_copy(
    layers: int, applies: bool, model: Model, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    takes(monkeypatch, 0.5)
    monkeypatch.setattr(library, "accelerated", lambda: True)
    options = replace(OPTIONS, gpu_layers=layers)
    assert (requantized_draft.faster_copy(model, options) is not None) is applies
    copy = requantized_draft.faster_copy(model, OPTIONS)
    assert copy is not None
    used(pair, copy)
    assert (known(model.path, pair, options) is not None) is applies


@pytest.mark.usefixtures("small_ones_count")
def test_full_disk_leaves_the_model_as_it_is(
    model: Model, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1 << 20))
    assert requantized_draft.faster_copy(model, OPTIONS) is None
    assert files(home) == []


@pytest.mark.usefixtures("small_ones_count")
@pytest.mark.parametrize("error", [NativeError("no"), OSError(28, "No space left on device")])
def test_failure_leaves_the_model_as_it_is_and_nothing_behind(
    error: Exception,
    model: Model,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(source: Path, destination: Path, *_: Any, **__: Any) -> None:
        destination.write_bytes(b"GGUF half of it")
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(requantized_draft, "quantize", fail)
        with caplog.at_level(logging.WARNING, "localspec.llama"):
            assert requantized_draft.faster_copy(model, OPTIONS) is None
    assert "used as it is" in caplog.text
    assert files(home) == []
    takes(monkeypatch, 0.5)
    assert requantized_draft.faster_copy(model, OPTIONS) is not None, (
        "it is tried again another time"
    )


@pytest.mark.usefixtures("small_ones_count")
def test_folder_that_cannot_be_made_leaves_the_model_as_it_is(
    model: Model, pair: Pair, home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (home / "cache").mkdir(parents=True, exist_ok=True)
    (home / "cache" / "drafts").write_text("in the way", encoding="utf-8")
    assert requantized_draft.faster_copy(model, OPTIONS) is None
    assert known(model.path, pair) is None
    assert "used as it is" in caplog.text


@pytest.mark.usefixtures("small_ones_count")
def test_memory_that_was_lost_or_spoilt_is_made_anew(
    model: Model, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    takes(monkeypatch, 0.5)
    made = count_quantizations(monkeypatch)
    copy = requantized_draft.faster_copy(model, OPTIONS)
    assert copy is not None
    used(pair, copy)
    copy.path.unlink()
    assert known(model.path, pair) is None
    copy.path.with_suffix(".json").write_text("{", encoding="utf-8")
    assert known(model.path, pair) is None
    copy.path.with_suffix(".json").unlink()
    assert requantized_draft.faster_copy(model, OPTIONS) == copy
    assert known(model.path, pair) is None
    assert len(made) == 2


@pytest.mark.usefixtures("small_ones_count")
def test_copy_that_somebody_removed_is_made_again(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cache folder may be cleaned, its small files last."""
    takes(monkeypatch, 0.5)
    copy = requantized_draft.faster_copy(model, OPTIONS)
    assert copy is not None
    copy.path.unlink()
    assert requantized_draft.faster_copy(model, OPTIONS) == copy
    assert copy.path.exists()


@pytest.mark.usefixtures("small_ones_count")
def test_another_file_of_that_name_has_its_own_copy(
    draft_path: Path, pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    takes(monkeypatch, 0.5)
    path = tmp_path / "draft.gguf"
    path.write_bytes(draft_path.read_bytes())
    with Model(path, OPTIONS) as first:
        copy = requantized_draft.faster_copy(first, OPTIONS)
    assert copy is not None
    used(pair, copy)
    stored = json.loads(copy.path.with_suffix(".json").read_text())
    use = {
        "target": str(pair.target.resolve()),
        "file": file_identity(pair.target),
        "copy": True,
        "acceptance": list(RIGHT),
    }
    assert stored == {"source": str(path.resolve()), "ratio": 0.5, "pairs": {pair.key: use}}
    assert known(path, pair) is not None
    path.unlink()
    path.write_bytes(draft_path.read_bytes())
    assert known(path, pair) is None


@pytest.mark.usefixtures("small_ones_count")
@pytest.mark.parametrize("ratio", [0.5, 1.0])
def test_copies_of_earlier_versions_go_when_a_new_one_is_made(
    ratio: float, draft_path: Path, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a file, whatever made them another one; not those of its namesake elsewhere."""
    takes(monkeypatch, 0.5)
    (tmp_path / "elsewhere").mkdir()
    path, namesake = tmp_path / "draft.gguf", tmp_path / "elsewhere" / "draft.gguf"
    for file in (path, namesake):
        file.write_bytes(draft_path.read_bytes())

    def copied(file: Path) -> Path | None:
        with Model(file, OPTIONS) as model:
            copy = requantized_draft.faster_copy(model, OPTIONS)
            return None if copy is None else copy.path

    os.utime(namesake, ns=(1, 1))
    kept, first = copied(namesake), copied(path)
    assert kept is not None
    assert first is not None
    os.utime(path, ns=(2, 2))
    second = copied(path)
    assert second is not None
    assert not first.exists()
    assert not first.with_suffix(".json").exists()
    monkeypatch.setattr(library, "version", lambda: "another llama.cpp")
    takes(monkeypatch, ratio)
    third = copied(path)
    assert second != third
    assert not second.exists()
    assert not second.with_suffix(".json").exists()
    folder = home / "cache" / "drafts"
    names = {file.name for file in folder.iterdir()}
    expected = {kept.name, kept.with_suffix(".json").name}
    assert expected < names
    assert len(names - expected) == (2 if ratio < requantized_draft.WORTHWHILE else 1)


@pytest.mark.usefixtures("small_ones_count")
def test_what_a_killed_process_left_is_removed(
    model: Model, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    takes(monkeypatch, 0.5)
    folder = home / "cache" / "drafts"
    folder.mkdir(parents=True)
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    left, busy = folder / f"some-Q4_0-0.{ended.pid}.partial", folder / "some-Q4_0-0.1.partial"
    for partial in (left, busy):
        partial.write_bytes(b"GGUF")
    assert requantized_draft.faster_copy(model, OPTIONS) is not None
    assert not left.exists()
    assert busy.exists(), "another process is at it"


USE = {"target": "t", "file": {}, "copy": True, "acceptance": None}
NO_PAIRS: list[object] = [
    5,
    [],
    "key",
    {"key": None},
    {"key": True},
    {"key": USE | {"copy": "yes"}},
    {"key": USE | {"target": 5}},
    {"key": USE | {"file": []}},
    {"key": USE | {"acceptance": [0.5]}},
    {"key": USE | {"acceptance": ["often", "seldom"]}},
]


@pytest.mark.usefixtures("small_ones_count")
@pytest.mark.parametrize(
    "record",
    [
        5,
        [],
        None,
        {"ratio": None},
        {"ratio": "fast"},
        {"ratio": math.nan},
        {"ratio": -1.0},
        {"ratio": [0.5]},
        *({"ratio": 0.5, "pairs": pairs} for pairs in NO_PAIRS),
    ],
    ids=str,
)
def test_record_that_says_nothing(
    record: object, model: Model, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    takes(monkeypatch, 0.5)
    pair = pair._replace(key="key")
    copy = requantized_draft.faster_copy(model, OPTIONS)
    assert copy is not None
    used(pair, copy)
    assert known(model.path, pair) is not None
    copy.path.with_suffix(".json").write_text(json.dumps(record), encoding="utf-8")
    (copy.path.parent / "other.json").write_text(json.dumps(record), encoding="utf-8")
    assert known(model.path, pair) is None
    assert requantized_draft.faster_copy(model, OPTIONS) == copy
    used(pair, copy)
    assert known(model.path, pair) == CopyVerdict(copy, RIGHT)
