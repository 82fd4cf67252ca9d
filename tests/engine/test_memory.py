"""Answers leave nothing behind, alone or at once: no memory, no seat, no sequence, no cell."""

from __future__ import annotations

import gc
import random
import threading
from functools import partial

import psutil
import pytest

import localspec
from localspec import Drafting, ModelOptions, SamplingParams
from tests.engine.conftest import ModelFiles
from tests.engine.test_parallel import all_free
from tests.support import inside
from tests.support.agreed_time import agree_on_time
from tests.support.together import together

pytestmark = pytest.mark.nightly

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
        seats = inside.seats(engine)
        kept, target = seats.kept, seats.shared[0]
        assert len(kept) <= target.kept
        kept.clear()
        used = range(at_once * target.leaves + target.kept)
        assert {shared.length(n) for shared in seats.shared for n in used} == {0}
