"""One generation at a time: nothing is changed before the engine is held, and it is let go of
however an answer ends."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

import localspec
from localspec import Engine, EngineBusy
from tests.support import inside
from tests.support.asking import PLAIN, asked, said
from tests.support.greedy import CLEAR


def test_engine_is_free_again_if_closing_an_answer_raises(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupt, or a failure of llama.cpp while it rolls back."""
    wanted = said(engine, CLEAR, count=8)

    def fails(context: Sequence[int]) -> None:
        raise KeyboardInterrupt

    stream = asked(engine, CLEAR, count=8)
    next(stream)
    with monkeypatch.context() as patch:
        patch.setattr(inside.target(engine), "rollback", fails)
        with pytest.raises(KeyboardInterrupt):
            stream.close()
    assert not inside.scheduler(engine).tasks
    assert said(engine, CLEAR, count=8) == wanted


def test_a_late_cancel_does_not_stop_the_next_answer(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer ends, and another one begins, while somebody is about to stop it."""
    wanted = asked(engine, CLEAR, PLAIN, 8).completion().text
    first, second = (asked(engine, CLEAR, PLAIN, 8) for _ in range(2))
    next(first)
    stopping, begun = threading.Event(), threading.Event()

    def change_over() -> None:
        stopping.wait()
        first.close()
        next(second)
        begun.set()

    context = inside.contexts(engine)[0]
    cancel = context.cancel

    def slowly() -> None:
        stopping.set()
        begun.wait(0.5)  # as long as a thread may be kept from going on
        cancel()

    other = threading.Thread(target=change_over)
    other.start()
    with monkeypatch.context() as patch:
        patch.setattr(context, "cancel", slowly)
        first.cancel()
    other.join()
    assert second.completion().text == wanted
    assert second.finish_reason == "length"


@pytest.mark.parametrize("call", ["close", "clear"])
def test_a_callback_that_would_wait_for_its_own_answer_is_told(engine: Engine, call: str) -> None:
    def progress(done: int, total: int) -> None:
        getattr(engine, call)()

    with pytest.raises(EngineBusy):
        said(engine, CLEAR, count=4, reuse=False, progress=progress)
    assert len(said(engine, CLEAR, count=4)) == 4


def test_another_engine_takes_turns_with_an_answer(engine: Engine) -> None:
    """One thread computes for all engines of a process."""
    with localspec.load(context=256, threads=1) as other:
        running, waiting = asked(engine, CLEAR, count=60), asked(other, CLEAR, count=4)
        answered = threading.Event()
        next(running)
        waiting.begin(answered.set)
        seen = [answered.is_set() for _ in running]
        assert seen[len(seen) // 2], "its first token came long before the end of this answer"
        list(waiting)
