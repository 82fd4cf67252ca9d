"""Adapters and projectors take memory as well, and forecasts count it."""

from __future__ import annotations

import logging
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from localspec import ModelOptions
from localspec.gguf.dimensions import n_layers
from localspec.gguf.projectors import image_besides, image_compute
from localspec.gguf.reader import read_gguf
from localspec.hub.local import local_models
from localspec.llama.model import Model
from localspec.llama.pictures import PicturePart
from localspec.llama.projector import Projector
from localspec.pairing import rules
from localspec.pairing.auto import choose, decide
from localspec.pairing.memory import (
    MemoryNeed,
    PairUse,
    layers_that_fit,
    memory_of_pair,
    most_layers,
    opened_besides,
    place,
)
from tests.pairing.pairs import model
from tests.pairing.test_memory import LINUX, MIB, TOLERANCE, resident
from tests.support.adapters import lora
from tests.support.ggufs import tiny_llama
from tests.support.homes import move_to
from tests.support.images import png, projector


@pytest.fixture
def options(tmp_path: Path, target_path: Path) -> ModelOptions:
    """Those of the embedded target with both, 16 and 33 MiB."""
    adapter = lora(tmp_path / "lora.gguf", target_path, ending="ffn_down.weight", rank=512)
    eye = projector(tmp_path / "eye.gguf", 384, dim=512, hidden=2048, side=336, patch=14)
    return ModelOptions(context=512, lora=str(adapter), mmproj=eye)


@pytest.mark.skipif(not LINUX, reason="resident memory means something else elsewhere")
def test_resident_memory_is_foretold_with_both(options: ModelOptions, target_path: Path) -> None:
    need = place(read_gguf(target_path), options, 0).host
    said = {"context": 512, "lora": str(options.adapters[0].path), "mmproj": str(options.mmproj)}
    measured = resident((target_path, said))
    assert need.total == pytest.approx(measured, rel=TOLERANCE), (
        f"foretold {need.total / MIB:.1f} MiB ({need}), measured {measured / MIB:.1f} MiB"
    )


@pytest.mark.parametrize(
    "shape",
    [
        {"dim": 256, "hidden": 1024, "side": 224, "patch": 14},
        {"dim": 512, "hidden": 256, "side": 224, "patch": 16},
        {"dim": 64, "hidden": 64, "side": 672, "patch": 14},
    ],
    ids=["feed-forward", "attention", "pixels"],
)
def test_what_an_image_takes_is_foretold_as_llama_cpp_reports_it(
    shape: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = projector(tmp_path / "eye.gguf", 64, **shape)
    said = ModelOptions(context=512, threads=1, gpu_layers=0)
    with (
        caplog.at_level(logging.INFO, "localspec.llama"),
        Model(tiny_llama(tmp_path / "a.gguf"), said) as one,
    ):
        caplog.clear()
        eye = Projector(path, one, said)
        rows = [part.rows() for part in eye.parts("key", png(0)) if isinstance(part, PicturePart)]
        eye.close()
    found = re.findall(r"compute buffer size = +([\d.]+) MiB", caplog.text)
    measured = float(found[-1]) + sum(each.nbytes for each in rows) / MIB
    assert image_compute(read_gguf(path)) / MIB == pytest.approx(measured, rel=0.15)


def test_they_lie_where_the_layers_do(options: ModelOptions, target_path: Path) -> None:
    file, without = read_gguf(target_path), ModelOptions(context=512)
    (adapter,), projector = opened_besides(options)
    assert projector is not None
    eye = projector.weight_bytes + image_compute(projector) + image_besides(projector)
    for layers, on_device in ((0, 0.0), (2, 1 / n_layers(file)), (-1, 1.0)):
        bare = place(file, without, layers)
        full = place(file, options, layers)
        taken = round(adapter.weight_bytes * on_device) + (eye if layers else 0)
        assert full.device.total - bare.device.total == taken
        rest = adapter.weight_bytes + eye - taken
        assert full.host.total - bare.host.total == rest
        assert full.host.reclaimable == bare.host.reclaimable, "they are read, and not mapped"
    whole = place(file, without, -1).device.total
    fit = most_layers(file, options, int(1.2 * whole))
    assert fit.layers <= n_layers(file), "with them the device is too small"


def test_each_of_a_pair_has_its_own(
    options: ModelOptions, tmp_path: Path, target_path: Path, draft_path: Path
) -> None:
    target, draft = read_gguf(target_path), read_gguf(draft_path)
    own = lora(tmp_path / "draft-lora.gguf", draft_path, rank=64)
    both = ModelOptions(context=512, lora=options.lora, mmproj=options.mmproj, lora_draft=str(own))
    bare, full = (PairUse(options=one) for one in (ModelOptions(context=512), both))
    alone = memory_of_pair(target, draft, bare)
    mine, other = memory_of_pair(target, draft, full)
    assert other.total - alone[1].total == read_gguf(own).weight_bytes
    assert mine.total - alone[0].total > 40 * MIB
    needs = [place(target, both, -1), place(draft, both.for_draft(512), -1)]
    large = 1 << 40
    fit = layers_that_fit(target, draft, both, large)
    assert fit.need == sum((each.device for each in needs), MemoryNeed()).total
    kept = [memory_of_pair(target, draft, replace(use, device_free=large)) for use in (bare, full)]
    assert kept[0] == kept[1], "none stays here"


def test_auto_sees_that_a_projector_leaves_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = move_to(tmp_path, monkeypatch)
    target = model(here / "target.gguf", width=512, layers=8)
    draft = model(here / "good.gguf", width=128)
    with_eye = ModelOptions(mmproj=projector(tmp_path / "eye", 64, dim=512, hidden=2048))
    need = sum(memory_of_pair(read_gguf(target), read_gguf(draft), PairUse()), MemoryNeed())
    monkeypatch.setattr(rules, "available", lambda: (need.total + MIB, 1 << 40))
    assert choose(target, ModelOptions()).draft == draft
    choice = choose(target, with_eye)  # nothing is remembered of the other
    assert choice.draft is None
    assert "not enough memory for good.gguf" in choice.why
    found = [one for one in local_models() if one.source != "built-in"]
    choice = decide(read_gguf(target), found, [], with_eye, accelerated=False)
    assert choice.draft is None
