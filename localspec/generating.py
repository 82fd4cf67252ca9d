"""How an engine generates one answer, step by step."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing, suppress
from time import perf_counter

from localspec.answering import Answer, reread, vocabulary_of
from localspec.decoding.interfaces import Drafter, Planner, Step
from localspec.decoding.loop import drive, speculate
from localspec.drafters.composition import asks_model, compose, sources
from localspec.llama.native_context import CacheFull
from localspec.policy.calibration import Calibration
from localspec.policy.policy import Policy
from localspec.policy.profile import PairProfile
from localspec.policy.threads import Threads
from localspec.scheduling.scheduler import Scheduler
from localspec.scheduling.seats import Seat
from localspec.scheduling.task import Displaced, Task, Wait
from localspec.stream import Piece


class Generating:
    """Generates answers as tasks of a scheduler, over seats."""

    profile: PairProfile
    _scheduler: Scheduler
    _threads: Threads
    _calibration: Calibration

    def _answer(self, answer: Answer, task: Task) -> None:
        seat, stats, session, started = seat_of(task), answer.stats, answer.session, perf_counter()
        steps = self.begin(answer, task)
        elapsed = perf_counter() - started
        stats.prompt_seconds = max(0.0, elapsed - stats.calibration_seconds)
        try:
            for step in steps:
                length = len(session.context) + session.dropped
                piece = Piece(step, answer.detokenizer.take(), length, session.finish)
                if session.finish is None:
                    self._scheduler.put(task, piece)
                else:
                    task.put(piece)
        finally:
            steps.close()
            stats.threads = self._threads.why
            stats.notices += seat.cache.told()
            seat.target.progress = None
            seat.target.look(())

    def begin(self, answer: Answer, task: Task) -> Generator[Step, None, None]:
        """The steps of an answer whose task has a seat."""
        seat = seat_of(task)
        stats, tokens, target, parts = answer.stats, answer.session.context, seat.target, seat.parts
        self._threads.begin()
        target.look(answer.pictures)
        known = seat.known(tokens) if answer.reuse else 0
        planner, drafter = compose(
            answer.drafting,
            parts,
            self.profile,
            seat.limits,
            costs=seat.costs,
            greedy=answer.sampling.greedy,
            trees=answer.rule.trees,
            coupled=answer.rule.coupled,
            cannot=target.why_not_draft,
            session=answer.session,
            known=known,
        )
        stats.vocabulary = vocabulary_of(parts)  # the way of this answer is decided now
        adaptive = isinstance(planner, Policy)
        if isinstance(planner, Policy):
            stats.account = planner.statement
            stats.calibration_seconds = self._measure(seat, tokens, known)
        target.progress = answer.progress
        if answer.reuse:
            stats.notices += seat.recall(tokens)
        stats.cached_tokens = seat.take_up(tokens, reuse=answer.reuse)
        parts.index.expect(tokens, answer.prediction)
        asks = asks_model(answer.drafting, parts)
        if asks:
            seat.allot(len(tokens))
        drafter.begin(tokens)

        def read() -> None:
            if unread := tokens[len(seat.cache.tokens) : -1]:
                seat.cache.extend(unread, 0, answer.progress)

        # It would read the prompt, as text.
        if adaptive and not answer.pictures and seat.alone:
            with suppress(CacheFull, Displaced):  # there is no room for that now
                stats.calibration_seconds += self._calibration.behind(
                    seat.cache, sources(parts)[1], tokens, read
                )
        seat.drafting = False
        return self._steps(answer, task, planner, drafter, asks)

    def _steps(
        self, answer: Answer, task: Task, planner: Planner, drafter: Drafter, asks: bool
    ) -> Generator[Step, None, None]:
        """Behind shifts of the context too, with their seconds beside other answers; threads may
        change between two. `asks`: whether the draft model may be asked."""
        session, rule, clock = answer.session, answer.rule, self._scheduler.time_of(task)
        seat, waited = seat_of(task), task.waited
        while True:
            requests = speculate(session, drafter, planner, rule, clock=clock)
            with closing(drive(session, requests, seat.target)) as steps:
                while True:
                    if asks:
                        seat.allot(len(session.context))
                    before, lost = {**waited}, task.lost
                    step = next(steps, None)
                    self._threads.between()
                    seat.drafting = False
                    if step is None:
                        break
                    if task.lost > lost:
                        # The planner counts what was for this answer; its reader, what it took.
                        step = step._replace(
                            seconds=step.seconds + task.lost - lost,
                            target_seconds=waited[Wait.TARGET] - before[Wait.TARGET],
                            draft_seconds=waited[Wait.DRAFT] - before[Wait.DRAFT],
                        )
                    yield step
            if not session.shift():
                return
            reread(answer, seat.target, seat.parts, drafter)

    def _measure(
        self, seat: Seat, prompt: Sequence[int], known: int, *, whole: bool = False
    ) -> float:
        # Other answers are not held up by measuring what is known well enough.
        if self.profile.target and not whole and not seat.alone:
            return 0.0
        took, models = 0.0, sources(seat.parts)[1]
        with seat.measuring() as possible:
            if possible:
                took = self._calibration.before(seat.cache, models, prompt, known, whole=whole)
        return took


def seat_of(task: Task) -> Seat:
    assert isinstance(task.seat, Seat), "it runs"
    return task.seat
