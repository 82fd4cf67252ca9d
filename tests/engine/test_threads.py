"""Threads that move while an answer is written: the same answer, and costs of the right count."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import localspec
from localspec import Engine, ModelOptions
from localspec.llama import library
from localspec.llama.threads import Threads
from localspec.policy import calibration
from localspec.policy.calibration import calibrate
from tests.support import inside
from tests.support.asking import asked, said
from tests.support.greedy import CLEAR
from tests.support.sessions import make_drafts_cheap

pytestmark = pytest.mark.nightly


@pytest.fixture
def two_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "default_threads", lambda: 2)  # however many there are


@pytest.fixture
def auto(two_counts: None) -> Iterator[Engine]:
    with localspec.load(options=ModelOptions(context=512)) as engine:
        make_drafts_cheap(engine)
        yield engine


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


def test_costs_on_fewer_threads_are_measured_again(
    auto: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibration, "calibrate", lambda *arguments: calibrate(*arguments) or True)
    threads = inside.threads(auto)
    for count, doubts in ((1, 1), (2, 0)):
        threads.count = count
        threads.between()
        auto.calibrate()
        assert auto.profile.doubts == doubts


def test_a_fixed_count_is_told_and_never_left() -> None:
    with localspec.load(options=ModelOptions(context=256, threads=1)) as engine:
        assert asked(engine, CLEAR, count=8).completion().stats.threads == "1, as asked for"


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
