"""Locking: one generation at a time; however an answer ends, the engine is free afterwards."""

import gc
import random
import signal
import threading
from functools import partial

import psutil
import pytest

import localspec
from localspec import Drafting, Engine, EngineBusy, GenerationStats, ModelOptions, SamplingParams
from tests.engine.conftest import ModelFiles
from tests.engine.test_parallel import all_free
from tests.support import inside
from tests.support.agreed_time import agree_on_time
from tests.support.asking import ENDLESS, PLAIN, ask, generate
from tests.support.greedy import CLEAR
from tests.support.patches import fail_with
from tests.support.together import together


def test_engine_is_free_after_failures(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupts, or a failure of llama.cpp while it rolls back."""
    wanted = generate(engine, CLEAR, count=8)
    stream = ask(engine, CLEAR, count=900, sampling=ENDLESS)
    next(stream)
    with monkeypatch.context() as patch:
        patch.setattr(inside.slot(engine).cache, "rollback", fail_with(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            stream.close()
    assert not inside.slots(engine).tasks
    with monkeypatch.context() as patch:
        patch.setattr(GenerationStats, "add", fail_with(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt) as _kept:  # and the frames
            ask(engine, CLEAR, count=900, sampling=ENDLESS).completion()
    assert generate(engine, CLEAR, count=8) == wanted


def test_late_cancel_spares_the_next_answer(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next answer begins between the call of `cancel` and its effect."""
    wanted = ask(engine, CLEAR, PLAIN, 8).completion().text
    first, second = (ask(engine, CLEAR, PLAIN, 8) for _ in range(2))
    next(first)
    stopping, begun = threading.Event(), threading.Event()

    def change_over() -> None:
        stopping.wait()
        first.close()
        next(second)
        begun.set()

    context = inside.contexts(engine)[0]
    cancel = context.cancel

    def slow_cancel() -> None:
        stopping.set()
        begun.wait(0.5)  # as a suspended thread
        cancel()

    monkeypatch.setattr(context, "cancel", slow_cancel)
    assert together([change_over, first.cancel]) == [None, None]
    assert second.completion().text == wanted
    assert second.finish_reason == "length"


@pytest.mark.parametrize("call", ["close", "clear", "read"])
def test_callback_must_not_wait_for_its_own_answer(engine: Engine, call: str) -> None:
    stream: localspec.Stream = ask(
        engine, CLEAR, reuse=False, progress=lambda *_: getattr(engine, call, stream.__next__)()
    )
    with pytest.raises(EngineBusy):
        next(stream)
    assert len(generate(engine, CLEAR, count=4)) == 4


def test_interrupted_call_leaves_the_engine_free(engine: Engine) -> None:
    """Also while its last pass runs."""
    ids, go_on = engine.tokenize(CLEAR * 20), threading.Event()

    def stopped() -> bool:
        if not interrupted:
            interrupted.append(True)
            signal.raise_signal(signal.SIGINT)
            go_on.wait()
        return False

    interrupted: list[bool] = []
    try:
        with pytest.raises(KeyboardInterrupt):
            engine.likelihood(ids, stopped=stopped)
        stream = ask(engine, CLEAR, count=4)
        stream.begin()
    finally:
        go_on.set()
    assert len(stream.completion().text) > 0


def test_two_engines_take_turns(engine: Engine) -> None:
    """One thread computes for all engines of a process."""
    with localspec.load(context=256, threads=1) as other:
        running, waiting = ask(engine, CLEAR, count=60), ask(other, CLEAR, count=4)
        answered = threading.Event()
        next(running)
        waiting.begin(answered.set)
        seen = [answered.is_set() for _ in running]
        assert seen[len(seen) // 2], "its first token came long before the end of this answer"
        list(waiting)


# Answers, single or parallel, leak no memory, slots, sequences or cells.


ANSWERS = 300
ALLOWED = 6 << 20
"""Bytes. A leak of one row of logits per answer (32 kB) would show as more."""
DRAFTINGS = (
    Drafting(),
    Drafting(drafter="model", depth=3),
    Drafting(drafter="ngram", width=3, depth=2),
)


def count_threads() -> int:
    """The number of threads, without timers of a quarter of a second."""
    return sum(not isinstance(thread, threading.Timer) for thread in threading.enumerate())


@pytest.mark.nightly
@pytest.mark.parametrize("at_once", [1, 8])
def test_nothing_grows_over_answers(
    prompts: list[str], tiny_pair: ModelFiles, at_once: int
) -> None:
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

        run(160, 0)  # afterwards buffers and kept texts have their final size
        before, threads = run(80, 1000), count_threads()
        assert run(ANSWERS, 2000) - before < ALLOWED
        assert count_threads() == threads
        assert counts["cancelled"] > 10
        assert counts["accepted"] > ANSWERS
        if at_once == 1:
            return
        kept, shared = inside.slots(engine).kept, inside.shared_contexts(engine)
        target = shared[0]
        assert len(inside.drafts_of_kept_texts(engine)) <= target.kept
        kept.clear()
        used = range(at_once * target.leaves + target.kept)
        assert {one.length(n) for one in shared for n in used} == {0}
