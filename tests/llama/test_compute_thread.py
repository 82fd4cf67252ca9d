"""Passes that answers share are made by one thread."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from signal import SIGINT
from time import sleep
from typing import Any

import llama_cpp
import pytest

import localspec
from localspec import Drafting, ModelOptions, SamplingParams
from localspec.llama import compute_thread
from tests.support.together import together

pytestmark = pytest.mark.nightly

openmp = pytest.mark.skipif(
    compute_thread._release_team is None, reason="llama.cpp is built without OpenMP"
)


@openmp
def test_one_thread_makes_the_passes_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    made_by: list[int] = []
    decode = llama_cpp.llama_decode

    def noted(*arguments: Any) -> Any:
        made_by.append(threading.get_ident())
        return decode(*arguments)

    monkeypatch.setattr(llama_cpp, "llama_decode", noted)
    with localspec.load(options=ModelOptions(context=256), parallel=3) as pair:

        def answer() -> int:
            pair.stream(
                "Once upon a time",
                max_tokens=8,
                sampling=SamplingParams(temperature=0),
                drafting=Drafting(drafter="model", depth=2),
            ).completion()
            return threading.get_ident()

        asked = together([answer] * 3)
    assert len(made_by) > 8
    assert len(set(made_by)) == 1
    assert made_by[0] not in {threading.get_ident(), *asked}


_TEAMS = """
import os, sys, threading
import localspec
from localspec import Drafting, ModelOptions

def tasks():
    return len(os.listdir("/proc/self/task"))

def answer(engine):
    drafting = Drafting(drafter="none")
    engine.stream("Once", max_tokens=2, drafting=drafting).completion()

with localspec.load(options=ModelOptions(context=256, threads=2)) as alone:
    before = tasks()
    answer(alone)
    assert tasks() == before + 1, "a team of this thread"
    with localspec.load(options=ModelOptions(context=256, threads=2), parallel=2) as pair:
        answer(pair)
        for _ in range(200):
            if tasks() == before + 2:
                break
            threading.Event().wait(0.05)
        # The thread that computes, and the other one of its team.
        assert tasks() == before + 2, (before, tasks())
"""


_IN_TURN = """
import os, threading
from concurrent.futures import ThreadPoolExecutor as Pool
import localspec
from localspec import Drafting, ModelOptions

def tasks():
    return len(os.listdir("/proc/self/task"))

def answer(engine):
    engine.generate("Once", max_tokens=2, drafting=Drafting(drafter="none"))
    return tasks()

with localspec.load(options=ModelOptions(context=256, threads=2)) as engine, Pool(1) as one:
    with Pool(1) as other:
        pools = (one, other, one)
        for pool in pools:
            pool.submit(int).result()
        before = tasks()
        for asked in (answer, lambda engine: engine.logits([1, 2])):
            for pool in pools:
                pool.submit(asked, engine).result()
                for _ in range(200):
                    if tasks() == before:
                        break
                    threading.Event().wait(0.05)
                assert tasks() == before, "a team is left"
    one.shutdown()
    answer(engine)
    assert tasks() > 1, "where no other thread lives it stays"
"""


@openmp
@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="a team of one has no further thread")
@pytest.mark.parametrize("code", [_TEAMS, _IN_TURN], ids=["shared", "in turn"])
def test_a_thread_that_computed_by_itself_gives_its_team_up(code: str) -> None:
    """Else libgomp would count it, and all teams would sleep at every barrier."""
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert run.returncode == 0, run.stderr


@pytest.fixture
def thread() -> compute_thread._ComputeThread:
    return compute_thread._ComputeThread()


@pytest.fixture
def interruptible() -> Iterator[None]:
    """A process that a script began in the background ignores Ctrl+C."""
    before = signal.signal(SIGINT, signal.default_int_handler)
    yield
    signal.signal(SIGINT, before)


@openmp
def test_what_goes_wrong_is_raised_where_it_was_asked_for(
    thread: compute_thread._ComputeThread,
) -> None:
    def fails() -> None:
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        thread.call(fails, ())
    assert thread.call(divmod, (7, 2)) == (3, 1), "and the next call is made"


@openmp
@pytest.mark.skipif(sys.platform == "win32", reason="no signals to a thread")
def test_an_interrupt_waits_for_the_end_of_a_pass(
    thread: compute_thread._ComputeThread, interruptible: None
) -> None:
    over: list[bool] = []
    asks = threading.get_ident()

    def slow(interrupted: Callable[[], object]) -> None:
        interrupted()
        sleep(0.3)
        over.append(True)

    with pytest.raises(KeyboardInterrupt):  # in this thread, which waits
        thread.call(slow, (lambda: signal.pthread_kill(asks, SIGINT),))
    assert over == [True]
