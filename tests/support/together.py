"""Asking an engine for several answers at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import TypeVar

from localspec import Drafting
from localspec.answering import Answer
from localspec.decoding.interfaces import Step
from localspec.decoding.rules import acceptance_rule
from localspec.decoding.sampling import SamplingParams
from localspec.decoding.session import Session
from localspec.decoding.stats import GenerationStats
from localspec.parallel_engine import ParallelEngine

Result = TypeVar("Result")
PATIENCE = 300.0
"""Seconds until a test that hangs fails."""


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


@contextmanager
def seated(
    engine: ParallelEngine, session: Session, sampling: SamplingParams, drafting: Drafting
) -> Iterator[Generator[Step, None, None]]:
    """The steps of a session in a seat of its own, below the public API."""
    rule = acceptance_rule(
        drafting.rule, greedy=session.sampler.greedy, threshold=drafting.threshold
    )
    answer = Answer(
        session=session,
        sampling=sampling,
        drafting=drafting,
        rule=rule,
        stats=GenerationStats(),
        progress=None,
        prediction=(),
    )
    seat = engine._seats.take(session.context, wait=True, stopped=lambda: False)
    try:
        with closing(engine.begin(answer, seat)) as steps:
            yield steps
    finally:
        engine._seats.give_back(seat)
