"""Self-drafts: references, and drafts made from a model's own file."""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

import localspec
from localspec import Drafting, LocalspecError, ModelOptions, SamplingParams
from localspec.bench.scale import scale_model
from localspec.bench.scaled_gguf import ModelShape
from localspec.errors import UsageError
from localspec.gguf.reader import read_gguf
from localspec.hub import removal
from localspec.hub.local import local_models
from localspec.llama.model import Model
from localspec.llama.quantize import quantize
from localspec.pairing import forecast
from localspec.policy.cost_curve import CostCurve
from localspec.self_draft import maker
from localspec.self_draft.maker import SelfDraft, self_draft
from localspec.self_draft.recipe import (
    Recipe,
    SelfDraftRequest,
    can_leave_out_layers,
    smaller_quantizations,
)
from tests.engine.test_exact_distribution import SIZES, WAYS, check_every_outcome
from tests.support import ggufs


def test_references_are_parsed() -> None:
    assert SelfDraftRequest.parse("self") == SelfDraftRequest()
    assert SelfDraftRequest.parse("self:q4_0") == SelfDraftRequest(quant="Q4_0")
    assert SelfDraftRequest.parse("self:4") == SelfDraftRequest(count=4)
    assert SelfDraftRequest.parse("./self") is None
    assert SelfDraftRequest.parse(Path("selfish.gguf")) is None


@pytest.mark.parametrize(
    "reference", ["self:", "self:0", "self:Q9_9", "self:-4", f"self:{'9' * 5000}"]
)
def test_invalid_reference_is_refused(reference: str) -> None:
    with pytest.raises(UsageError, match=r"Write self for the best, self:Q4_0"):
        SelfDraftRequest.parse(reference)


def test_descriptions() -> None:
    assert Recipe("Q4_0").description == "in Q4_0"
    assert Recipe(None, (3,)).description == "without layer 3"
    assert Recipe("Q4_0", (3, 4, 7)).description == "in Q4_0 without layers 3, 4 and 7"
    assert Recipe("Q4_0", (3, 4)).label == "Q4_0-without-2"


def test_models_whose_layers_cannot_be_left_out(tmp_path: Path, target_path: Path) -> None:
    for path, can in (
        (ggufs.tiny_mamba(tmp_path / "a"), False),
        (ggufs.tiny_llama(tmp_path / "b", layers=3), False),
        (target_path, True),
    ):
        assert can_leave_out_layers(read_gguf(path)) == can


def test_smaller_quantizations(tmp_path: Path, target_path: Path) -> None:
    assert smaller_quantizations(read_gguf(target_path)) == ("Q4_0",)
    quantize(target_path, tmp_path / "small.gguf", "Q4_0", 1, again=True)
    assert smaller_quantizations(read_gguf(tmp_path / "small.gguf")) == ("Q2_K",)
    whole = read_gguf(ggufs.tiny_llama(tmp_path / "whole.gguf"))
    assert smaller_quantizations(whole) == ("Q4_0", "Q8_0")


# Costs of passes are fixed here; drafts and their acceptance are real.


pytestmark = pytest.mark.usefixtures("home")
OPTIONS = ModelOptions(threads=1, gpu_layers=0, context=256)
GREEDY = SamplingParams(temperature=0)
FLAT = {n: 1.0 + 0.02 * n for n in range(1, 10)}
"""Seconds of a pass over n tokens with cheap verification."""
STEEP = {n: float(n) for n in range(1, 10)}


@pytest.fixture(scope="module")
def padded(tmp_path_factory: pytest.TempPathFactory, draft_path: Path) -> Path:
    """The built-in draft model with six more layers, which do nothing."""
    path = tmp_path_factory.mktemp("padded") / "padded.gguf"
    scale_model(draft_path, path, ModelShape(192, 9, 512, "Q8_0"))
    return path


Costs = Callable[..., None]


@pytest.fixture(autouse=True)
def costs(monkeypatch: pytest.MonkeyPatch) -> Costs:
    """Fixes the costs of passes, first to cheap verification: the model's by size, a draft's by its
    share of the bytes."""

    def fix(seconds: Mapping[int, float], ratio: float | None = None) -> None:
        def calibrate(_context: object, curve: CostCurve, _budget: float) -> bool:
            curve.learn(seconds, 0)
            return True

        def time_ratio(model: Model, path: Path, _options: object) -> float:
            return ratio or path.stat().st_size / model.path.stat().st_size

        monkeypatch.setattr(forecast, "calibrate", calibrate)
        monkeypatch.setattr(maker, "time_ratio", time_ratio)

    fix(FLAT)
    return fix


def make_draft(path: Path, reference: str = "self") -> SelfDraft:
    request = SelfDraftRequest.parse(reference)
    assert request is not None
    return self_draft(path, request, OPTIONS)


def ggufs_in(home: Path) -> list[str]:
    return sorted(path.name for path in (home / "cache" / "self").glob("*.gguf*"))


@pytest.mark.nightly
def test_idle_layers_are_left_out(
    padded: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft = make_draft(padded)
    assert draft.path is not None
    layers = read_gguf(draft.path).own_integer("block_count")
    assert layers is not None
    assert layers <= 6  # the last layer always stays
    assert "times the speed" in draft.words
    assert f"'localspec rm {draft.path}' removes it" in draft.words
    assert ggufs_in(home) == [draft.path.name]
    # The result is stored.
    monkeypatch.setattr(forecast, "calibrate", lambda *_: pytest.fail("measured again"))
    assert make_draft(padded) == draft


@pytest.mark.nightly
def test_answer_equals_plain_decoding(padded: Path) -> None:
    with localspec.load(padded, draft="self", options=OPTIONS) as engine:
        assert (engine.draft_path and engine.draft_path.parent.name) == "self"
        assert any("The draft is padded.gguf" in notice for notice in engine.notices)
        plain, drafted = (
            engine.generate("Once upon a time", sampling=GREEDY, max_tokens=60, drafting=drafting)
            for drafting in (Drafting(drafter="none"), Drafting(drafter="model", depth=3))
        )
    assert drafted.text == plain.text
    assert drafted.stats.accepted > 20


@pytest.mark.nightly
def test_sampled_text_has_the_targets_distribution(target_path: Path) -> None:
    with localspec.load(target_path, draft="self:3", options=OPTIONS) as engine:
        way = WAYS["tree, speculative sampling"]
        check_every_outcome(engine, way, *SIZES["two tokens, longer drafts"])


@pytest.mark.nightly
def test_nothing_is_stored_if_no_draft_pays(
    target_path: Path, home: Path, costs: Costs, monkeypatch: pytest.MonkeyPatch
) -> None:
    costs(STEEP)
    draft = make_draft(target_path)
    assert draft.path is None
    assert draft.words.startswith("No draft made from tale-13m-q8_0.gguf itself pays")
    assert "-d self:Q4_0" in draft.words
    assert ggufs_in(home) == []
    monkeypatch.setattr(forecast, "calibrate", lambda *_: pytest.fail("measured again"))
    with localspec.load(target_path, draft="self", options=OPTIONS) as engine:
        assert engine.draft is None
        assert draft.words in engine.notices
        assert engine.why_no_draft == "no draft made from its own file pays"


@pytest.mark.nightly
def test_smaller_quantization_if_it_pays(target_path: Path, home: Path, costs: Costs) -> None:
    costs(FLAT, ratio=0.3)
    draft = make_draft(target_path)
    assert draft.path is not None
    assert "in Q4_0" in draft.words
    assert read_gguf(draft.path).integer("general.file_type") == 2
    assert ggufs_in(home) == [draft.path.name]


@pytest.mark.nightly
def test_removed_draft_is_made_again(target_path: Path, home: Path) -> None:
    draft = make_draft(target_path, "self:Q4_0")
    assert draft.path is not None
    listed = [model for model in local_models() if model.source == "self"]
    assert [model.path for model in listed] == [draft.path]
    removal.plan(str(draft.path)).execute()
    assert ggufs_in(home) == []
    assert make_draft(target_path, "self:Q4_0") == draft
    assert draft.path.exists()


@pytest.mark.nightly
def test_truncated_draft_is_made_again(target_path: Path) -> None:
    draft = make_draft(target_path, "self:2")
    assert draft.path is not None
    whole = draft.path.stat().st_size
    with draft.path.open("r+b") as file:
        file.truncate(whole // 2)
    assert make_draft(target_path, "self:2") == draft
    assert draft.path.stat().st_size == whole


@pytest.mark.nightly
def test_full_disk_is_reported(
    target_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(total=9, free=1_000))
    with pytest.raises(LocalspecError, match=r"cannot be written: it takes .* Make room"):
        make_draft(target_path, "self:Q4_0")
    assert ggufs_in(home) == []


@pytest.mark.nightly
def test_interrupt_leaves_no_files(target_path: Path, home: Path, costs: Costs) -> None:
    costs(FLAT, ratio=0.3)

    def stop() -> None:
        if ggufs_in(home):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        self_draft(target_path, SelfDraftRequest(), OPTIONS, stop)
    assert ggufs_in(home) == []


@pytest.mark.nightly
def test_impossible_requests_are_refused(target_path: Path, tmp_path: Path) -> None:
    hybrid = ggufs.tiny_hybrid(tmp_path / "hybrid.gguf")
    for path, reference, words in (
        (target_path, "self:5", r"1 to 4 layers can be left out, not 5"),
        (target_path, "self:Q8_0", r"is already in Q8_0. Name a smaller"),
        (hybrid, "self:1", r"no layers can be left out, .*Write -d self:Q4_0"),
    ):
        with pytest.raises(UsageError, match=words):
            make_draft(path, reference)
    with pytest.raises(UsageError, match=r"Leave out --rpc once"):
        self_draft(target_path, SelfDraftRequest(), ModelOptions(rpc=("localhost:1",)))
