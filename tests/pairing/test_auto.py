"""`-d auto` takes the draft model with the largest expected gain, and none that does not pay."""

import os
from pathlib import Path
from typing import Any

import pytest

import localspec
from localspec import ModelOptions
from localspec.gguf.file import GGUFFile
from localspec.gguf.reader import read_gguf
from localspec.hub.local import local_models
from localspec.llama import kernels_file
from localspec.pairing import auto, forecast
from localspec.pairing.auto import Choice, choose, decide, measured_speed_ups, store_speed_up
from localspec.pairing.forecast import ON_DEVICE, STOCK, Forecast, best, curve, with_experts
from localspec.pairing.memory import ANY_USE, MemoryNeed, PairUse, memory_of_pair
from localspec.pairing.rules import active_share, judge
from tests.pairing.pairs import TOKENS, model
from tests.support.ggufs import sized_llama
from tests.support.patches import fail_with

OPTIONS = ModelOptions()
OTHERS = (*TOKENS[:5], "x", *TOKENS[6:])
"""Another vocabulary than the target's."""

pytestmark = pytest.mark.usefixtures("here")


@pytest.fixture
def target(here: Path) -> Path:
    return model(here / "target.gguf", width=512, layers=8)


def decide_draft(target: Path, known: dict[Path, float] | None = None, **options: Any) -> Choice:
    use = PairUse(options=ModelOptions(**options))
    return decide(read_gguf(target), local_models(), known or {}, use)


def test_draft_with_the_largest_gain_is_chosen(here: Path, target: Path) -> None:
    model(here / "large.gguf", width=448, layers=8)
    good = model(here / "good.gguf", width=128)
    model(here / "other.gguf", width=128, tokens=OTHERS)
    model(here / "stranger.gguf", width=128, add_bos=False)
    choice = decide_draft(target)
    assert choice.draft == good
    assert choice.why.startswith("using good.gguf as draft model (expected")
    good.unlink()
    assert decide_draft(target).draft == here / "stranger.gguf"


def test_no_fitting_draft(here: Path, target: Path) -> None:
    assert "no smaller model here fits" in decide_draft(target).why
    model(here / "half.gguf", width=512, layers=5)
    choice = decide_draft(target)
    assert choice.draft is None
    assert "half.gguf fits best, but no gain is expected" in choice.why
    (here / "half.gguf").unlink()
    model(here / "other.gguf", width=128, tokens=OTHERS)
    choice = decide_draft(target, cross_vocabulary="off")
    assert choice.draft is None
    assert "other.gguf: the vocabularies differ: token 5 is 'c' in the target" in choice.why


def test_other_vocabulary_is_the_last_choice(here: Path, target: Path) -> None:
    model(here / "crow.gguf", width=128, name="Crow", tokens=OTHERS)
    assert decide_draft(target).draft is None, "it is a stranger as well"
    other = model(here / "other.gguf", width=128, tokens=OTHERS)
    assert decide_draft(target).draft == other
    good = model(here / "good.gguf", width=128)
    assert decide_draft(target).draft == good


def test_draft_must_fit_memory(here: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = model(here / "good.gguf", width=128)
    need = sum(memory_of_pair(read_gguf(target), read_gguf(good), PairUse()), MemoryNeed())
    with monkeypatch.context() as patch:
        patch.setattr("localspec.pairing.rules.available_memory", lambda: (need.least - 1, 1 << 40))
        assert decide_draft(target).draft is None
        assert decide_draft(target, kv_type_k="q8_0", kv_type_v="q8_0").draft == good
        patch.setattr("localspec.pairing.rules.available_memory", lambda: (1 << 20, 1 << 40))
        choice = decide_draft(target)
        assert (choice.draft, choice.temporary) == (None, True)
        assert "not enough memory for good.gguf" in choice.why
        assert choose(target, ANY_USE).temporary
        patch.setattr("localspec.pairing.rules.available_memory", lambda: (need.least - 1,) * 2)
        kinds = [ModelOptions(kv_type_k=kind, kv_type_v=kind) for kind in ("f32", "q8_0")]
        assert [choose(target, PairUse(options=kind)).draft for kind in kinds] == [None, good]
    # Not remembered: memory comes and goes.
    assert choose(target, ANY_USE).draft == good


def test_measurements_precede_forecasts(here: Path, target: Path) -> None:
    good, other = model(here / "good.gguf", width=128), model(here / "other.gguf", width=192)
    assert decide_draft(target).draft == good
    choice = decide_draft(target, {other: 2.5})
    assert choice.draft == other
    assert "doctor' measured 2.50×" in choice.why
    choice = decide_draft(target, {good: 0.9, other: 0.8})
    assert choice.draft is None
    assert "good.gguf fits best, but 'localspec doctor' measured no gain" in choice.why


def test_recommendations_depend_on_pair_and_options(here: Path, target: Path) -> None:
    draft, other = (model(here / f"{name}.gguf") for name in ("draft", "other"))
    Path("link.gguf").symlink_to(draft)  # as in Hugging Face's cache
    store_speed_up(target, Path("link.gguf"), 1.5, OPTIONS)
    os.chdir("/")
    store_speed_up(target, other, 1.1, OPTIONS)
    assert measured_speed_ups(target, OPTIONS) == {draft: 1.5, other: 1.1}
    store_speed_up(target, draft, 1.7, OPTIONS)
    assert measured_speed_ups(target, OPTIONS) == {other: 1.1, draft: 1.7}
    for one in (ModelOptions(gpu_layers=0), ModelOptions(kernels="off")):
        assert measured_speed_ups(target, one) == {}
    assert measured_speed_ups(draft, OPTIONS) == {}
    model(draft, width=96)  # another file of that name
    assert measured_speed_ups(target, OPTIONS) == {other: 1.1}
    assert measured_speed_ups(here / "missing.gguf", OPTIONS) == {}


def test_choice_is_cached(here: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = model(here / "good.gguf", width=128)
    first = choose(target, ANY_USE)
    assert first.draft is not None
    with monkeypatch.context() as patch:
        patch.setattr(auto, "decide", fail_with(AssertionError("decided again")))
        assert choose(target, ANY_USE) == first
        with pytest.raises(AssertionError):
            choose(target, PairUse(options=ModelOptions(context=64)))
        store_speed_up(target, good, 3.0, OPTIONS)
        with pytest.raises(AssertionError):
            choose(target, ANY_USE)
    assert "measured" in choose(target, ANY_USE).why


def test_best_depths() -> None:
    cpu, gpu = curve(STOCK), curve(ON_DEVICE)
    assert best(1.0, 0.9, cpu) == Forecast(1.0, 1.0, 0.9)
    assert (best(0.01, 0.0, cpu).speed_up, best(0.3, 0.5, cpu).pays) == (1.0, False)
    assert best(0.0, 1.0, gpu).speed_up == pytest.approx(9 / gpu[8])
    # By hand: one token, two passes' worth.
    assert best(0.1, 0.5, (1.0, 1.1)).speed_up == pytest.approx(1.5 / 1.2)


def test_forecasts_are_better_for_relatives_and_smaller_models(tmp_path: Path) -> None:
    target = read_gguf(model(tmp_path / "t.gguf", width=512, layers=8))

    def speed(*, remote: bool = False, **changed: Any) -> float:
        draft = read_gguf(model(tmp_path / "d.gguf", **{"width": 128} | changed))
        use = PairUse(options=ModelOptions(rpc=("far:1",) if remote else ()))
        return forecast.forecast(target, draft, judge(target, draft), use).speed_up

    assert speed(remote=True) > speed() > speed(name="Crow") >= 1.0
    assert speed() > speed(width=256)
    assert speed() > speed(template=None)


def test_processor_and_experts_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels_file, "library_path", lambda: Path(__file__))
    monkeypatch.delenv(kernels_file.VARIABLE, raising=False)
    dense = read_gguf(model(tmp_path / "t.gguf", width=512, layers=8))
    mixture = read_gguf(model(tmp_path / "m.gguf", width=512, layers=8, experts=(64, 4)))
    draft = read_gguf(model(tmp_path / "d.gguf", width=64))

    def speed(target: GGUFFile, outcome: str, value: str) -> float:
        kernels_file.self_tests.store({"tested": value}, {outcome: value})
        kernels_file.expected.cache_clear()
        return forecast.forecast(target, draft, judge(target, draft), PairUse()).speed_up

    speeds = [speed(dense, "instruction_set", name) for name in ("avx512", "avx2")]
    assert speeds[0] > speeds[1] > speed(dense, "why_not", "damaged") > 1.0
    assert speed(mixture, "instruction_set", "neon-i8mm") < speed(dense, "instruction_set", "sve")
    kernels_file.expected.cache_clear()


def test_each_token_of_a_pass_adds_experts(tmp_path: Path) -> None:
    flat = (1.0, 1.0, 1.0)
    mixture = read_gguf(model(tmp_path / "m.gguf", experts=(4, 2)))
    read = {tensor.name: tensor.size * share for tensor, share in active_share(mixture)}
    part = sum(size for name, size in read.items() if "_exps" in name) / sum(read.values())
    # By hand: independent choices of two of four read 2, 3 and 3.5 of them; half of what is added.
    wanted = [1.0, 1.0 + part * 0.25, 1.0 + part * 0.375]
    assert with_experts(mixture, flat) == pytest.approx(wanted)
    assert with_experts(read_gguf(model(tmp_path / "d.gguf")), flat) == flat


@pytest.fixture
def large(here: Path) -> Path:
    """A target that the built-in models can draft for."""
    return sized_llama(here / "large.gguf", layers=3)


def test_load_opens_and_reports_the_choice(large: Path, draft_path: Path) -> None:
    options = ModelOptions(context=256, threads=1)
    for why in ("run 'localspec doctor' to measure it", "doctor' measured 1.50×"):
        with localspec.load(large, options=options) as engine:
            assert (engine.draft_path, engine.why_no_draft) == (draft_path, None)
            assert why in (engine.why_draft or "")
        store_speed_up(large, draft_path, 1.5, options)


def test_draft_that_fails_to_open_is_left_out(here: Path, large: Path) -> None:
    """Its metadata are valid, but tensors are missing."""
    tokens = [*map(str, read_gguf(large).array("tokenizer.ggml.tokens") or ())]
    name = "llama-1024x3"  # as the target calls itself
    model(here / "hollow.gguf", tokens=tokens, controls=range(5), name=name)
    options = ModelOptions(context=256, threads=1)
    store_speed_up(large, here / "hollow.gguf", 5.0, options)
    with localspec.load(large, options=options) as engine:
        assert engine.draft is None
        assert "hollow.gguf fails" in (engine.why_no_draft or "")
        assert engine.generate("Once", max_tokens=4).text
    with pytest.raises(localspec.ModelInvalid):
        localspec.load(large, draft=here / "hollow.gguf", options=options)


def test_embedded_target_needs_no_search(draft_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "local_models", fail_with(AssertionError("looked around")))
    with localspec.load(options=ModelOptions(context=64, threads=1)) as engine:
        assert engine.draft_path == draft_path
        assert (engine.why_draft, engine.why_no_draft) == (None, None)


def test_draft_to_download_is_named(here: Path) -> None:
    for name, get in (
        ("Qwen3-8B-Q4_K_M", "get one with 'localspec pull qwen3-0.6b'"),
        ("my-own-model", "name one with --draft"),
    ):
        target = model(here / f"{name}.gguf")
        assert decide_draft(target).why.endswith(get)
        target.unlink()
