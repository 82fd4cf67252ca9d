"""Asking an engine for several answers at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import TypeVar

from localspec import Drafting, Engine
from localspec.answering import Answer
from localspec.decoding.interfaces import Step
from localspec.decoding.rules import acceptance_rule
from localspec.decoding.sampling import SamplingParams
from localspec.decoding.session import Session
from localspec.decoding.stats import GenerationStats
from localspec.prompting.detokenizer import Detokenizer
from localspec.scheduling.task import Task
from tests.support import inside

Result = TypeVar("Result")
PATIENCE = 300.0  # seconds until a test that hangs fails


def together(work: Sequence[Callable[[], Result]]) -> list[Result | BaseException]:
    """What each returns or raises, all of them begun at the same time in threads of their own."""
    results: dict[int, Result | BaseException] = {}
    start = threading.Barrier(len(work))

    def run(number: int) -> None:
        try:
            start.wait(PATIENCE)
            results[number] = work[number]()
        except BaseException as error:
            results[number] = error

    threads = [
        threading.Thread(target=run, args=(number,), daemon=True) for number in range(len(work))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive(), "an answer never ends"
    return [results[number] for number in range(len(work))]


def seated(
    engine: Engine,
    session: Session,
    sampling: SamplingParams,
    drafting: Drafting,
    reading: Callable[[Iterator[Step]], object],
) -> None:
    """Have the steps of a session in a seat of its own read, below the public API, as far as
    `reading` asks for them."""
    rule = acceptance_rule(
        drafting.rule, greedy=session.sampler.greedy, threshold=drafting.threshold
    )
    answer = Answer(
        session=session,
        detokenizer=Detokenizer(engine.model.vocabulary.piece, ()),
        sampling=sampling,
        drafting=drafting,
        rule=rule,
        stats=GenerationStats(),
        progress=None,
        prediction=(),
    )

    def work(task: Task) -> None:
        with closing(engine.begin(answer, task)) as steps:
            reading(steps)

    assert list(inside.scheduler(engine).submit(session.context, work).items()) == []
