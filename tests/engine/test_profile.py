"""What an engine measured and learned lasts: over answers, and over sessions."""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter

import pytest

import localspec
from localspec import Drafting, Engine, ModelOptions
from localspec.llama import library
from localspec.llama.context import Context
from localspec.llama.threads import Threads
from localspec.policy import calibration
from localspec.policy.calibration import calibrate
from localspec.policy.cost_curve import SIZES, CostCurve
from localspec.policy.reasons import TOO_SHORT
from localspec.policy.store import folder
from tests.support import inside
from tests.support.asking import asked, said
from tests.support.greedy import CLEAR
from tests.support.sessions import make_drafts_cheap

pytestmark = pytest.mark.usefixtures("home")

OPTIONS = ModelOptions(context=256, threads=1)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Every context that is calibrated, in next to no time."""
    seen: list[object] = []
    calibrate = calibration.calibrate

    def counted(context: Context, curve: CostCurve, budget: float) -> bool:
        seen.append(context)
        calibrate(context, curve, 0.0)
        return True  # whatever else this machine does

    monkeypatch.setattr(calibration, "calibrate", counted)
    monkeypatch.setattr(calibration, "matches_curve", lambda *_: True)
    return seen


def ask(engine: Engine, drafting: Drafting | None = None) -> localspec.Completion:
    return asked(engine, CLEAR, drafting, 16).completion()


def test_second_session_starts_warm(measured: list[object]) -> None:
    with localspec.load(options=OPTIONS) as engine:
        assert not engine.profile.target
        started = perf_counter()
        first = ask(engine)
        elapsed, stats = perf_counter() - started, first.stats
        assert stats.calibration_seconds > 0.0
        # Measuring is counted once, and not as reading the prompt.
        assert stats.prompt_seconds + stats.calibration_seconds + stats.decode_seconds <= elapsed
        assert len(measured) == 2
        assert engine.profile.target
        assert engine.draft_costs
        ask(engine)
        assert len(measured) == 2, "once is enough"
        kept = engine.profile.as_dict()
    with localspec.load(options=OPTIONS) as engine:
        assert engine.profile.as_dict() == kept
        again = ask(engine)
        assert len(measured) == 2
        assert again.text == first.text


def test_forgetting_drops_it_here_and_on_disk(measured: list[object]) -> None:
    with localspec.load(options=OPTIONS) as engine:
        ask(engine)
    with localspec.load(options=OPTIONS) as engine:
        assert engine.profile.target
        assert len(list(folder().iterdir())) == 1
        engine.forget()
        assert not engine.profile.target
        assert list(folder().iterdir()) == []
    assert list(folder().iterdir()) == [], "and closing does not bring it back"
    with localspec.load(options=OPTIONS) as engine:
        assert not engine.profile.target
        ask(engine)
    assert len(measured) == 4


@pytest.mark.parametrize(
    "options",
    [
        ModelOptions(context=256, threads=1, kv_type_k="q8_0"),
        ModelOptions(context=256, threads=1, flash_attention="off"),
        ModelOptions(context=256, threads=1, draft_threads=1),
        ModelOptions(context=256, threads=2),
    ],
    ids=["kv", "flash", "draft threads", "threads"],
)
def test_other_settings_are_measured_by_themselves(
    options: ModelOptions, measured: list[object]
) -> None:
    with localspec.load(options=OPTIONS) as engine:
        ask(engine)
    with localspec.load(options=options) as engine:
        assert not engine.profile.target
    with localspec.load(draft=None, options=OPTIONS) as engine:
        assert not engine.profile.target


@pytest.mark.parametrize(
    "drafting", [Drafting(drafter="none"), Drafting(drafter="ngram"), Drafting(depth=2)]
)
def test_forced_choice_needs_no_measurement(drafting: Drafting, measured: list[object]) -> None:
    with localspec.load(options=OPTIONS) as engine:
        ask(engine, drafting)
        assert measured == []
        assert not engine.profile.target
    assert not folder().exists() or list(folder().iterdir()) == []


def test_target_alone_is_measured_alone(measured: list[object]) -> None:
    with localspec.load(draft=None, options=OPTIONS) as engine:
        ask(engine)
        assert len(measured) == 1
        assert engine.draft_costs is None
    with localspec.load(draft=None, options=OPTIONS) as engine:
        ask(engine)
        assert len(measured) == 1


def test_busy_machine_is_measured_again_and_the_conversation_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A prompt that goes on from the last one decodes only what is new, measuring or not."""
    calibrate, measured = calibration.calibrate, 0

    def unsteady(context: Context, curve: CostCurve, budget: float) -> bool:
        nonlocal measured
        measured += 1
        calibrate(context, curve, 0.0)
        return False

    monkeypatch.setattr(calibration, "calibrate", unsteady)
    with localspec.load(options=OPTIONS) as engine:
        first = ask(engine)
        again = ask(engine)
        assert again.text == first.text
        assert again.stats.cached_tokens == again.stats.prompt_tokens - 1
        assert measured == 2
        for n in range(4):
            said(engine, f"Number {n} of some other prompts.", count=2)
        assert 2 < measured <= 6, "once more, and not for ever"
        given_up = measured
        ask(engine)
        assert measured == given_up
        engine.calibrate()
        assert measured == given_up + 2, "but whoever asks for it gets it"


def test_whether_the_draft_model_reads_the_prompt_is_decided_by_what_is_measured_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a busy moment its passes seem dear, and only until they are measured again."""
    # Of the target and of its draft model, in seconds; and again.
    paces = iter([(0.02, False), (2.0, False), (0.02, True), (0.001, True)])

    def calibrate(_: Context, curve: CostCurve, budget: float) -> bool:
        seconds, steady = next(paces)
        curve.forget()
        curve.learn({n: seconds * (1.0 + 0.01 * n) for n in SIZES}, 0)
        return steady

    monkeypatch.setattr(calibration, "calibrate", calibrate)
    with localspec.load(options=OPTIONS) as engine:

        def reasons() -> set[str]:
            steps = [chunk.step for chunk in asked(engine, CLEAR, None, 16)]
            return {step.plan.reason for step in steps if step is not None}

        assert TOO_SHORT in reasons()
        assert TOO_SHORT not in reasons()


def test_a_first_answer_waits_for_what_it_needs_and_who_asks_for_it_gets_all_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(calibration, "FIRST", (0.0, 0.0))
    with localspec.load(options=OPTIONS) as engine:
        ask(engine)
        sizes = SIZES[: calibration.CORE]
        assert not all(engine.profile.target.knows(n) for n in sizes)
        engine.calibrate()
        assert all(engine.profile.target.knows(n) for n in sizes)


# Threads that move while an answer is written: the same answer, and costs of the right count.


@pytest.fixture
def two_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "default_threads", lambda: 2)  # however many there are


@pytest.fixture
def auto(two_counts: None) -> Iterator[Engine]:
    with localspec.load(options=ModelOptions(context=512)) as engine:
        make_drafts_cheap(engine)
        yield engine


@pytest.mark.nightly
def test_restless_threads_leave_the_answer_as_it_is(
    auto: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: set[int] = set()

    def restless(self: Threads, tokens: int, seconds: float) -> None:
        used.add(self.count)
        self.count = 3 - self.count

    steady = said(auto, CLEAR)
    monkeypatch.setattr(Threads, "_decide", restless)
    assert said(auto, CLEAR) == steady
    assert used == {1, 2}
    used.clear()
    auto.profile.forget()
    auto.calibrate()
    assert not used, "what is measured says nothing of the present"
    assert auto.profile.target


@pytest.mark.nightly
def test_costs_on_fewer_threads_are_measured_again(
    auto: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibration, "calibrate", lambda *arguments: calibrate(*arguments) or True)
    threads = inside.threads(auto)
    for count, doubts in ((1, 1), (2, 0)):
        threads.count = count
        threads.apply()
        auto.calibrate()
        assert auto.profile.doubts == doubts


@pytest.mark.nightly
def test_a_fixed_count_is_told_and_never_left() -> None:
    with localspec.load(options=ModelOptions(context=256, threads=1)) as engine:
        assert asked(engine, CLEAR, count=8).completion().stats.threads == "1, as asked for"


@pytest.mark.nightly
@pytest.mark.usefixtures("two_counts")
@pytest.mark.parametrize(("layers", "moves"), [(-1, False), (9, False), (1, True), (0, True)])
def test_threads_are_left_alone_where_a_device_computes_all_layers(
    layers: int, moves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trials would learn from noise alone. The device is this test's say-so."""
    monkeypatch.setattr(library, "accelerated", lambda: True)
    with localspec.load(draft=None, options=ModelOptions(context=256, gpu_layers=layers)) as engine:
        assert engine.model.layers < 9
        assert (len(inside.threads(engine).counts) > 1) is moves
        assert ("a device computes" in engine.threads) is not moves
        assert engine.model.on_device is not moves
        chunk = inside.threads(engine).chunk(0, 512)
    assert chunk == 512, "a device reads prompts fastest as a whole"
