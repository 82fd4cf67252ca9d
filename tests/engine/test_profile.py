"""Measurements last over answers and sessions."""

from time import perf_counter
from typing import Any

import pytest

import localspec
from localspec import Drafting, Engine, ModelOptions
from localspec.llama import library, threads
from localspec.llama.context import Context
from localspec.llama.threads import Threads
from localspec.policy import calibration
from localspec.policy.calibration import calibrate
from localspec.policy.cost_curve import SIZES, CostCurve
from localspec.policy.reasons import TOO_SHORT
from localspec.policy.store import folder
from tests.support import inside
from tests.support.asking import ask, generate
from tests.support.greedy import CLEAR
from tests.support.sessions import make_drafts_cheap

pytestmark = pytest.mark.usefixtures("home")

OPTIONS = ModelOptions(context=256, threads=1)


def count_calibrations(patch: pytest.MonkeyPatch, *, steady: bool) -> list[object]:
    """Every context that was calibrated, which takes almost no time here. `steady`: whether the
    machine seems to be idle, whatever its load is."""
    seen: list[object] = []

    def counted(context: Context, curve: CostCurve, budget: float) -> bool:
        seen.append(context)
        calibrate(context, curve, 0.0)
        return steady

    patch.setattr(calibration, "calibrate", counted)
    return seen


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    monkeypatch.setattr(calibration, "matches_curve", lambda *_: True)
    return count_calibrations(monkeypatch, steady=True)


def complete(engine: Engine, drafting: Drafting | None = None) -> localspec.Completion:
    return ask(engine, CLEAR, drafting, 16).completion()


def test_second_session_uses_stored_measurements(measured: list[object]) -> None:
    with localspec.load(options=OPTIONS) as engine:
        assert not engine.profile.target
        started = perf_counter()
        first = complete(engine)
        elapsed, stats = perf_counter() - started, first.stats
        assert stats.calibration_seconds > 0.0
        # Measuring is counted once, and not as reading the prompt.
        assert stats.prompt_seconds + stats.calibration_seconds + stats.decode_seconds <= elapsed
        assert len(measured) == 2
        assert engine.profile.target
        assert engine.draft_costs
        complete(engine)
        assert len(measured) == 2, "once is enough"
        kept = engine.profile.as_dict()
    with localspec.load(options=OPTIONS) as engine:
        assert engine.profile.as_dict() == kept
        again = complete(engine)
        assert len(measured) == 2
        assert again.text == first.text


def test_forget_deletes_measurements_in_memory_and_on_disk(measured: list[object]) -> None:
    with localspec.load(options=OPTIONS) as engine:
        complete(engine)
    with localspec.load(options=OPTIONS) as engine:
        assert engine.profile.target
        assert len(list(folder().iterdir())) == 1
        engine.forget()
        assert not engine.profile.target
        assert list(folder().iterdir()) == []
    assert list(folder().iterdir()) == [], "and closing does not bring it back"
    with localspec.load(options=OPTIONS) as engine:
        assert not engine.profile.target
        complete(engine)
    assert len(measured) == 4


@pytest.mark.parametrize(
    "change",
    [
        {"kv_type_k": "q8_0"},
        {"flash_attention": "off"},
        {"draft_threads": 1},
        {"threads": 2},
        {"draft": None},
    ],
    ids=str,
)
def test_other_settings_are_measured_separately(change: Any, measured: list[object]) -> None:
    with localspec.load(options=OPTIONS) as engine:
        complete(engine)
    with localspec.load(options=OPTIONS, **change) as engine:
        assert not engine.profile.target


@pytest.mark.parametrize(
    "drafting", [Drafting(drafter="none"), Drafting(drafter="ngram"), Drafting(depth=2)]
)
def test_forced_drafters_are_not_measured(drafting: Drafting, measured: list[object]) -> None:
    with localspec.load(options=OPTIONS) as engine:
        complete(engine, drafting)
        assert measured == []
        assert not engine.profile.target
    assert not folder().exists() or list(folder().iterdir()) == []


def test_target_without_draft_is_measured(measured: list[object]) -> None:
    for _ in range(2):
        with localspec.load(draft=None, options=OPTIONS) as engine:
            assert complete(engine).stats.threads == "1, as requested"
            assert len(measured) == 1
            assert engine.draft_costs is None


def test_busy_machine_is_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calibration does not empty the cache: only new tokens of a prompt are decoded."""
    measured = count_calibrations(monkeypatch, steady=False)
    with localspec.load(options=OPTIONS) as engine:
        first, again = complete(engine), complete(engine)
        assert again.text == first.text
        assert again.stats.cached_tokens == again.stats.prompt_tokens - 1
        assert len(measured) == 2
        for n in range(4):
            generate(engine, f"Number {n} of some other prompts.", count=2)
        assert 2 < len(measured) <= 6, "again, but a limited number of times"
        limit = len(measured)
        complete(engine)
        assert len(measured) == limit
        engine.calibrate()
        assert len(measured) == limit + 2, "an explicit call measures"


def test_decision_to_read_the_prompt_uses_new_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes that were slow in a busy moment do not count, those that are slow again do."""
    # Of the target and of its draft model, in seconds; and again.
    paces = iter([(0.02, False), (2.0, False), (0.02, True), (2.0, True)])

    def calibrate(_: Context, curve: CostCurve, budget: float) -> bool:
        seconds, steady = next(paces)
        curve.forget()
        curve.learn({n: seconds * (1.0 + 0.01 * n) for n in SIZES}, 0)
        return steady

    monkeypatch.setattr(calibration, "calibrate", calibrate)
    with localspec.load(options=OPTIONS) as engine:

        def reasons(prompt: str) -> set[str]:
            steps = [chunk.step for chunk in ask(engine, prompt, None, 16)]
            return {step.plan.reason for step in steps if step is not None}

        assert TOO_SHORT not in reasons(CLEAR)
        assert TOO_SHORT in reasons("A hen went to the market to buy a hat.")


# Changing thread counts.


@pytest.fixture
def two_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "default_threads", lambda: 2)  # however many there are


@pytest.mark.nightly
@pytest.mark.usefixtures("two_counts")
def test_thread_counts_do_not_change_text(monkeypatch: pytest.MonkeyPatch) -> None:
    used: set[int] = set()

    def alternating(self: Threads, tokens: int, seconds: float) -> None:
        used.add(self.count)
        self.count = 3 - self.count

    with localspec.load(context=512) as auto:
        make_drafts_cheap(auto)
        steady = generate(auto, CLEAR)
        monkeypatch.setattr(Threads, "_decide", alternating)
        assert generate(auto, CLEAR) == steady
        assert used == {1, 2}
        used.clear()
        auto.profile.forget()
        auto.calibrate()
        assert not used, "calibration does not decide on threads"
        assert auto.profile.target


@pytest.mark.nightly
@pytest.mark.usefixtures("two_counts")
@pytest.mark.parametrize(("layers", "moves"), [(-1, False), (9, False), (1, True), (0, True)])
def test_threads_with_a_device(layers: int, moves: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials would measure noise only. The device is simulated."""
    monkeypatch.setattr(library, "accelerated", lambda: True)
    with localspec.load(draft=None, options=ModelOptions(context=256, gpu_layers=layers)) as engine:
        assert engine.model.layers < 9
        assert (len(inside.threads(engine).counts) > 1) is moves
        assert ("a device computes" in engine.threads) is not moves
        assert engine.model.on_device is not moves
        chunk = inside.threads(engine).chunk()
    assert chunk >= 512, "a device reads prompts fastest as a whole"
