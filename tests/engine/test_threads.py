"""Threads that move while an answer is written: the same answer, and costs of the right count."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import localspec
from localspec import Engine, ModelOptions, SamplingParams
from localspec.llama import library, thread_counts
from localspec.policy.profile import PairProfile
from localspec.policy.thread_use import SECONDS, TOGETHER, ThreadUse
from tests.support.greedy import CLEAR
from tests.support.sessions import make_drafts_cheap

pytestmark = pytest.mark.nightly

GREEDY = SamplingParams(temperature=0)


class Restless:
    """A controller that moves after every pass."""

    counts = (1, 2)
    reason = "it is restless"
    steady = False
    count = 2

    trying = True

    def __init__(self) -> None:
        self.passes: list[tuple[str, int]] = []
        self.cores: list[float | None] = []

    def begin(self) -> None:
        """Nothing is known."""

    def observe(
        self, user: str, tokens: int, context: int, seconds: float, cores: float | None = None
    ) -> None:
        self.passes.append((user, self.count))
        self.cores.append(cores)
        self.count = 3 - self.count

    def learn(self, user: str, tokens: int, context: int, seconds: float) -> None:
        self.passes.append((user, self.count))

    def chunk(self, user: str, context: int, most: int) -> int:
        return most

    def price(self, count: int, other: int) -> float | None:
        return None


@pytest.fixture
def two_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_counts, "thread_counts", lambda: [1, 2])  # however many there are


@pytest.fixture
def auto(two_counts: None) -> Iterator[Engine]:
    with localspec.load(options=ModelOptions(context=512)) as engine:
        make_drafts_cheap(engine)
        yield engine


def test_restless_threads_leave_the_answer_as_it_is(
    auto: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    steady = auto.generate(CLEAR, max_tokens=40, sampling=GREEDY)
    restless = Restless()
    monkeypatch.setattr(auto._threads, "controller", restless)
    moved = auto.generate(CLEAR, max_tokens=40, sampling=GREEDY)
    assert moved.text == steady.text
    assert {count for _, count in restless.passes} == {1, 2}
    assert "it is restless" in moved.stats.threads


def test_calibration_says_nothing_of_the_present(auto: Engine) -> None:
    auto.profile.forget()
    restless = Restless()
    auto._threads.controller = restless  # type: ignore[assignment]
    auto.calibrate()
    assert restless.passes == []
    assert auto.profile.target


def test_a_fixed_count_is_told_and_never_left() -> None:
    with localspec.load(options=ModelOptions(context=256, threads=1)) as engine:
        answer = engine.generate(CLEAR, max_tokens=8, sampling=GREEDY)
        assert answer.stats.threads == "1, as asked for"
        assert engine.profile.threads == 1


class Passes:
    """Of a model: on how many threads they are to run."""

    def __init__(self) -> None:
        self.counts: list[int] = []

    def set_threads(self, count: int) -> None:
        self.counts.append(count)


def test_passes_of_a_draft_are_told_with_the_one_that_verifies_it() -> None:
    restless = Restless()
    use = ThreadUse(restless, {"target": Passes()}, PairProfile(), fixed={})  # type: ignore[arg-type]
    draft, target = use.watch("draft"), use.watch("target")
    draft.passed(1, 10, 0.001)
    draft.passed(1, 11, 0.001)
    assert restless.passes == []
    target.passed(3, 10, 0.01)
    assert restless.passes == [("draft", 2), ("draft", 2), ("target", 2)], "one decision for all"
    use.between()
    draft.passed(64, 0, 0.01)  # of a prompt, which is read in chunks
    assert len(restless.passes) == 3
    use.chunk("draft", 64, 64)
    assert restless.passes[3:] == [("draft", 1)]


def test_a_pass_within_a_step_whose_count_is_given_up_is_not_told() -> None:
    """It ran on the count before, which is set anew between two steps only."""
    restless, passes, profile = Restless(), Passes(), PairProfile()
    use = ThreadUse(restless, {"target": passes}, profile, fixed={})  # type: ignore[arg-type]
    use.passed("target", 1, 0, 0.01)
    use.passed("target", 1, 0, 0.01)
    assert restless.passes == [("target", 2)]
    assert passes.counts == [2]
    assert profile.threads == 2
    use.between()
    assert passes.counts == [2, 1]
    assert profile.threads == 1
    use.passed("target", 1, 0, 0.01)
    assert restless.passes == [("target", 2), ("target", 1)]


def test_a_settled_count_hears_of_a_few_passes_at_once_and_of_one_that_stumbles_at_once() -> None:
    settled = Restless()
    settled.trying = False
    use = ThreadUse(settled, {"target": Passes()}, PairProfile(), fixed={})  # type: ignore[arg-type]
    use.passed("target", 1, 0, 0.01)  # the first of its kind: nobody knows what is usual
    assert len(settled.passes) == 1
    use.between()
    for _ in range(TOGETHER - 1):
        use.passed("target", 1, 0, 0.011)
    assert len(settled.passes) == 1
    use.passed("target", 1, 0, 0.01)
    assert len(settled.passes) == 1 + TOGETHER
    use.between()
    use.passed("target", 1, 0, 0.02)
    assert len(settled.passes) == 2 + TOGETHER, "it takes twice as long"
    use.between()
    use.passed("target", 2, 0, SECONDS)
    assert len(settled.passes) == 3 + TOGETHER, "passes are long"


@pytest.mark.usefixtures("two_counts")
@pytest.mark.parametrize(("layers", "moves"), [(-1, False), (9, False), (1, True), (0, True)])
def test_threads_are_left_alone_where_a_device_computes_all_layers(
    layers: int, moves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trials would learn from noise alone. The device is this test's say-so."""
    monkeypatch.setattr(library, "accelerated", lambda: True)
    with localspec.load(draft=None, options=ModelOptions(context=256, gpu_layers=layers)) as engine:
        assert engine.model.layers < 9
        assert (len(engine._threads.controller.counts) > 1) is moves
        assert ("a device computes" in engine.threads) is not moves
        assert engine.model.on_device is not moves
        chunk = engine._threads.chunk("target", 0, 512)
    assert chunk == 512, "a device reads prompts fastest as a whole"


def test_what_it_hears_of_the_cores_is_this_processes_time_by_that_of_the_passes() -> None:
    settled, used = Restless(), 5.0
    use = ThreadUse(
        settled,  # type: ignore[arg-type]
        {"target": Passes()},
        PairProfile(),
        fixed={},
        processor=lambda: used,
    )
    used += 0.3
    use.passed("target", 1, 0, 0.2)
    use.between()
    used += 0.1
    use.passed("target", 1, 0, 0.4)
    use.between()
    use.passed("target", 1, 0, 0.01)  # so short that some systems could not tell
    use.between()
    used += 3.0
    use.begin()  # whatever was computed between two answers
    used += 0.4
    use.passed("target", 1, 0, 0.2)
    assert settled.cores == [pytest.approx(1.5), pytest.approx(0.25), None, pytest.approx(2.0)]
