"""One generation at a time: nothing is changed before the engine is held, and it is let go of
however an answer ends."""

from __future__ import annotations

import gc
import random
import threading
from collections.abc import Sequence
from functools import partial

import psutil
import pytest

import localspec
from localspec import Drafting, Engine, EngineBusy, ModelOptions, SamplingParams
from tests.engine.conftest import ModelFiles
from tests.engine.test_parallel import all_free
from tests.support import inside
from tests.support.agreed_time import agree_on_time
from tests.support.asking import PLAIN, asked, said
from tests.support.greedy import CLEAR
from tests.support.together import together


def test_engine_is_free_again_if_closing_an_answer_raises(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupt, or a failure of llama.cpp while it rolls back."""
    wanted = said(engine, CLEAR, count=8)

    def fails(context: Sequence[int]) -> None:
        raise KeyboardInterrupt

    endless = SamplingParams(temperature=0, logit_bias={0: -1e9, 4: -1e9})
    stream = asked(engine, CLEAR, count=900, sampling=endless)
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


# Answers leave nothing behind, alone or at once: no memory, no slot, no sequence, no cell.


ANSWERS = 300
ALLOWED = 6 << 20
"""Bytes. A leak of one row of logits per answer (32 kB) would show as more."""
DRAFTINGS = (
    Drafting(),
    Drafting(drafter="model", depth=3),
    Drafting(drafter="ngram", width=3, depth=2),
)


def staying_threads() -> int:
    """How many there are, without the timers that look for room again for a quarter of a second."""
    return sum(not isinstance(thread, threading.Timer) for thread in threading.enumerate())


@pytest.mark.nightly
@pytest.mark.parametrize("at_once", [1, 8])
def test_nothing_grows_over_answers_of_which_some_are_cancelled(
    prompts: list[str], tiny_pair: ModelFiles, at_once: int
) -> None:
    """300 answers, every tenth cancelled at some step."""
    options = ModelOptions(context=1024, threads=1, parallel=at_once)
    with localspec.load(tiny_pair.target, draft=tiny_pair.draft, options=options) as engine:
        assert engine.parallel == at_once
        agree_on_time(engine)  # or drafts of such models would not pay
        counts = {"cancelled": 0, "accepted": 0}

        def client(seed: int, answers: int) -> None:
            dice = random.Random(seed)
            for n in range(answers):
                sampling = SamplingParams(temperature=0.8 * (n % 2), seed=n)
                prompt = prompts[dice.randrange(len(prompts))]
                drafting = DRAFTINGS[dice.randrange(len(DRAFTINGS))]
                stream = engine.stream(prompt, max_tokens=12, sampling=sampling, drafting=drafting)
                cancelled_at = dice.randrange(8) if dice.random() < 0.1 else -1
                for number, _ in enumerate(stream):
                    if number == cancelled_at:
                        stream.cancel()
                counts["cancelled"] += stream.finish_reason == "cancelled"
                counts["accepted"] += stream.stats.accepted

        def run(answers: int, seed: int) -> int:
            each = answers // at_once
            found = together([partial(client, seed + n, each) for n in range(at_once)])
            assert found == [None] * at_once
            assert at_once == 1 or all_free(engine)
            gc.collect()
            return int(psutil.Process().memory_info().rss)

        run(160, 0)  # buffers have their final size, and as many texts are kept as can be
        before, threads = run(80, 1000), staying_threads()
        assert run(ANSWERS, 2000) - before < ALLOWED
        assert staying_threads() == threads
        assert counts["cancelled"] > 10
        assert counts["accepted"] > ANSWERS
        if at_once == 1:
            return
        slots = inside.slots(engine)
        kept, target = slots.kept, slots.shared[0]
        assert len(kept) <= target.kept
        kept.clear()
        used = range(at_once * target.leaves + target.kept)
        assert {shared.length(n) for shared in slots.shared for n in used} == {0}
