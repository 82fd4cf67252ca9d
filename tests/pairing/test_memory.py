"""Memory as foretold, beside what llama.cpp sets aside and what the process really takes."""

import json
import logging
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import localspec
from localspec import ModelOptions, NativeError
from localspec.gguf.dimensions import Dimensions, n_layers
from localspec.gguf.projectors import image_compute, image_overhead
from localspec.gguf.reader import read_gguf
from localspec.llama.devices import Device
from localspec.llama.kernels import status
from localspec.llama.model import Model
from localspec.llama.pictures import PicturePart
from localspec.llama.projector import Projector
from localspec.llama.quantize import quantize
from localspec.pairing import rules
from localspec.pairing.auto import choose
from localspec.pairing.memory import (
    MemoryNeed,
    PairUse,
    adapters_and_projector,
    layers_that_fit,
    memory_of_pair,
    most_layers,
    place,
    require_remote_room,
)
from tests.cli.process import finished
from tests.gguf.raw import Tensor, write_model
from tests.pairing.pairs import model
from tests.support import inside
from tests.support.adapters import lora
from tests.support.buffers import logged_buffers
from tests.support.gguf_files import within
from tests.support.ggufs import sized_llama, tiny_hybrid, tiny_llama, tiny_mamba
from tests.support.homes import move_to
from tests.support.images import png, projector

pytestmark = pytest.mark.nightly

TOLERANCE = 0.10
MIB = 1 << 20
LINUX = sys.platform == "linux"
REMOTE = ModelOptions(context=1024, rpc=("far:1",))


@pytest.fixture(scope="module")
def files(
    tmp_path_factory: pytest.TempPathFactory, target_path: Path, draft_path: Path
) -> dict[str, Path]:
    """Models from 3 to 120 MB, of several types."""
    folder = tmp_path_factory.mktemp("sizes")
    found = {"embedded": target_path, "draft": draft_path}
    found["q8_0"] = sized_llama(folder / "sized.gguf", layers=8, context=4096)
    found["q4_0"] = folder / "q4_0.gguf"
    quantize(found["q8_0"], found["q4_0"], "Q4_0", 2, again=True)
    found["f16"] = tiny_llama(folder / "f16.gguf", dim=512, layers=6, heads=8, ff=2048)
    found["words"] = tiny_llama(folder / "words.gguf", dim=256, vocab_size=65_536)
    return found


def predict_memory(path: Path, options: dict[str, Any]) -> MemoryNeed:
    how = options | ({} if status().in_use else {"kernels": "off"})
    return place(read_gguf(path), ModelOptions(**how), 0).host


def check_memory(path: Path, options: dict[str, Any]) -> None:
    """Compare the prediction with what a separate process takes to open and use a model."""
    command = (sys.executable, "-m", "tests.pairing.resident", str(path), json.dumps(options))
    measured = int(finished(command=command, cwd=Path(__file__).parents[2]).succeeded())
    need = predict_memory(path, options)
    assert need.total == pytest.approx(measured, rel=TOLERANCE), (
        f"predicted {need.total / MIB:.1f} MiB ({need}), measured {measured / MIB:.1f} MiB"
    )


@pytest.mark.skipif(not LINUX, reason="resident memory means something else elsewhere")
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("embedded", {"context": 2048}),
        ("embedded", {"context": 2048, "kv_type_k": "q8_0", "kv_type_v": "q8_0"}),
        ("q8_0", {"context": 512}),
        ("q8_0", {"context": 4096}),
        ("q8_0", {"context": 2048, "kv_type_k": "q4_0", "kv_type_v": "q4_0"}),
        ("q8_0", {"context": 1024, "mmap": False}),
        ("q4_0", {"context": 2048, "kv_type_k": "q8_0", "kv_type_v": "f16"}),
        ("q4_0", {"context": 4096, "kv_type_k": "f32", "kv_type_v": "f32", "batch": 256}),
        ("q4_0", {"context": 2048, "kernels": "off"}),
        ("f16", {"context": 8192}),
        ("words", {"context": 1024}),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(map(str, value.values())),
)
def test_predicted_resident_memory_is_within_ten_percent(
    files: dict[str, Path], name: str, options: dict[str, Any]
) -> None:
    check_memory(files[name], options)


@pytest.mark.parametrize(
    ("write", "options"),
    [
        (tiny_llama, {"context": 512}),
        (tiny_llama, {"context": 513}),
        (tiny_llama, {"context": 1024, "kv_type_k": "q8_0", "kv_type_v": "q4_0"}),
        (tiny_llama, {"context": 1024, "kv_type_k": "f32", "kv_type_v": "bf16"}),
        (tiny_mamba, {"context": 512}),
        (tiny_hybrid, {"context": 512}),
        (tiny_hybrid, {"context": 2048}),
    ],
)
def test_predicted_caches_are_exact(
    write: Callable[[Path], Path],
    options: dict[str, Any],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = write(tmp_path / "a.gguf")
    found = logged_buffers(path, ModelOptions(threads=1, gpu_layers=0, **options), caplog)
    need = predict_memory(path, options)
    assert need.kv / MIB == pytest.approx(found["KV"] + found["RS"], abs=0.011)


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ({}, {"context": 1024}),
        ({"ff": 4096}, {"context": 4096}),
        ({"dim": 512}, {"context": 1024, "batch": 256}),
        ({"vocab_size": 100_000}, {"context": 1024}),
        ({"heads": 8}, {"context": 4096, "flash_attention": "off"}),
    ],
)
def test_predicted_compute_buffers(
    shape: dict[str, int], options: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    defaults: dict[str, Any] = {"dim": 256, "heads": 4, "ff": 1024, "layers": 2}
    path = tiny_llama(tmp_path / "a.gguf", **defaults | shape)
    found = logged_buffers(path, ModelOptions(threads=1, gpu_layers=0, **options), caplog)
    need = Dimensions(read_gguf(path), ModelOptions(**options)).compute()
    assert need / MIB == pytest.approx(found["compute"], rel=0.15)


def test_tied_output_is_counted_twice_on_a_device(draft_path: Path) -> None:
    file, use = read_gguf(draft_path), ModelOptions(context=512)
    assert place(file, use, 0).device == MemoryNeed()
    everything = place(file, use, -1)
    assert everything.layers == n_layers(file) + 1
    assert everything.device.weights == file.weight_bytes
    assert everything.host.kv == 0
    assert everything.device.kv == place(file, use, 0).host.kv


def test_most_layers_that_fit(target_path: Path) -> None:
    file, use = read_gguf(target_path), ModelOptions(context=512)
    whole = place(file, use, -1).device.total
    assert most_layers(file, use, 2 * whole).layers == n_layers(file) + 1
    assert most_layers(file, use, 0).layers == 0
    some = most_layers(file, use, int(whole * 0.8))
    assert 0 < some.layers <= n_layers(file)
    assert some.device.total <= 0.8 * whole
    assert place(file, use, some.layers + 1).device.total > 0.9 * int(whole * 0.8)


def test_latent_attention_keeps_one_vector_per_token(tmp_path: Path) -> None:
    attention = {"head_count": 4, "head_count_kv": 1, "key_length": 576, "value_length": 512}
    attention |= {"key_length_mla": 192, "value_length_mla": 128}
    own = {"block_count": 2, "embedding_length": 64} | within("attention", attention)
    tensors = [Tensor(f"blk.{n}.attn_kv_a_mqa.weight", (64, 4), offset=n * 1024) for n in range(2)]
    tensors.append(Tensor("blk.1.indexer.k_norm.weight", (128,), offset=2048))
    path = tmp_path / "a.gguf"
    write_model(path, architecture="deepseek32", own=own, tensors=tensors, data=4096)
    assert place(read_gguf(path), ModelOptions(context=256), 0).host.kv == 256 * (1152 + 128) * 2


def test_absurd_metadata_give_a_number(tmp_path: Path) -> None:
    path = model(tmp_path / "a.gguf", context=1 << 31, layers=2)
    data = path.read_bytes()
    for name in ("block_count", "attention.head_count", "embedding_length"):
        at = data.index(f"llama.{name}".encode()) + len(f"llama.{name}") + 4
        data = data[:at] + b"\xff\xff\xff\xff" + data[at + 4 :]
    path.write_bytes(data)
    assert place(read_gguf(path), ModelOptions(), 0).host.total > 0
    assert most_layers(read_gguf(path), ModelOptions(), 1 << 60).layers >= 0


def test_draft_cache_is_limited(tmp_path: Path, target_path: Path, draft_path: Path) -> None:
    use, target = PairUse(options=ModelOptions(context=8192)), read_gguf(target_path)
    with localspec.load(target_path, draft=draft_path, context=8192) as engine:
        held = inside.contexts(engine)[1].capacity
    other = read_gguf(model(tmp_path / "other.gguf"))
    for draft, tokens in ((read_gguf(draft_path), held), (other, 8192)):  # whose tokens are others
        need = place(draft, ModelOptions(context=tokens), 0).host
        assert memory_of_pair(target, draft, use)[1] == need
    assert held == 2176


def test_remote_target_needs_little_memory(target_path: Path, draft_path: Path) -> None:
    target, draft = read_gguf(target_path), read_gguf(draft_path)
    here, other = memory_of_pair(target, draft, PairUse(options=ModelOptions(context=1024)))
    rest, same = memory_of_pair(target, draft, PairUse(options=REMOTE))
    assert same == other, "the draft model stays here"
    assert (rest.kv, here.kv > 0) == (0, True)
    embeddings = next(t.size for t in target.tensors if t.name == "token_embd.weight")
    assert embeddings <= rest.weights < here.weights / 2


# Adapters and projectors take memory as well, and forecasts count it.


@pytest.fixture
def options(tmp_path: Path, target_path: Path) -> ModelOptions:
    """Options with an adapter of 16 MiB and a projector of 33 MiB for the built-in target."""
    adapter = lora(tmp_path / "lora.gguf", target_path, ending="ffn_down.weight", rank=512)
    eye = projector(tmp_path / "eye.gguf", 384, dim=512, hidden=2048, side=336, patch=14)
    return ModelOptions(context=512, lora=str(adapter), mmproj=eye)


@pytest.mark.skipif(not LINUX, reason="resident memory means something else elsewhere")
def test_memory_with_adapter_and_projector(options: ModelOptions, target_path: Path) -> None:
    said = {"context": 512, "lora": str(options.adapters[0].path), "mmproj": str(options.mmproj)}
    check_memory(target_path, said)


@pytest.mark.parametrize("sizes", [(256, 1024, 224, 14), (512, 256, 224, 16), (64, 64, 672, 14)])
def test_predicted_image_buffers(
    sizes: tuple[int, ...], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Most of it for the feed-forward part, attention, or pixels."""
    shape: dict[str, Any] = dict(zip(("dim", "hidden", "side", "patch"), sizes, strict=True))
    path = projector(tmp_path / "eye.gguf", 64, **shape)
    options = ModelOptions(context=512, threads=1, gpu_layers=0)
    caplog.set_level(logging.INFO, "localspec.llama")
    with Model(tiny_llama(tmp_path / "a.gguf"), options) as one:
        caplog.clear()
        eye = Projector(path, one, options)
        rows = [part.rows() for part in eye.parts("key", png(0)) if isinstance(part, PicturePart)]
        eye.close()
    found = re.findall(r"compute buffer size = +([\d.]+) MiB", caplog.text)
    measured = float(found[-1]) + sum(each.nbytes for each in rows) / MIB
    assert image_compute(read_gguf(path)) / MIB == pytest.approx(measured, rel=0.15)


def test_adapter_and_projector_placement(options: ModelOptions, target_path: Path) -> None:
    file, without = read_gguf(target_path), ModelOptions(context=512)
    (adapter,), projector = adapters_and_projector(options)
    assert projector is not None
    eye = projector.weight_bytes + image_compute(projector) + image_overhead(projector)
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


def test_target_and_draft_have_separate_adapters(
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


def test_auto_counts_the_projector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = move_to(tmp_path, monkeypatch)
    target = model(here / "target.gguf", width=512, layers=8)
    draft = model(here / "good.gguf", width=128)
    eye = projector(tmp_path / "eye", 64, dim=512, hidden=2048)
    with_eye = PairUse(options=ModelOptions(mmproj=eye))
    need = sum(memory_of_pair(read_gguf(target), read_gguf(draft), PairUse()), MemoryNeed())
    monkeypatch.setattr(rules, "available_memory", lambda: (need.total + MIB, 1 << 40))
    assert choose(target, PairUse()).draft == draft
    choice = choose(target, with_eye)  # nothing is remembered of the other
    assert choice.draft is None
    assert "not enough memory for good.gguf" in choice.why


def device(free: int, *, remote: bool = True) -> Device:
    return Device("RPC0", "far:1", "GPU", free, 2 * free, remote=remote)


def test_too_large_layers_are_refused(target_path: Path) -> None:
    half = place(read_gguf(target_path), REMOTE, -1).device.total // 2
    require_remote_room(target_path, REMOTE, [device(half), device(half + 1)])
    require_remote_room(target_path, REMOTE, [device(0)])  # of unknown size
    with pytest.raises(NativeError, match=r"\(1 of 2 devices are on RPC servers\). Add a server"):
        require_remote_room(target_path, REMOTE, [device(half), device(half - 1, remote=False)])
