"""An engine that generates several answers at once, in passes that they share."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from localspec.answering import Answer, reread
from localspec.decoding.driver import drive, with_shifts
from localspec.decoding.interfaces import PassRequest, Step
from localspec.decoding.likelihood import first_wrong, likelihood
from localspec.decoding.logprobs import TokenLogprob
from localspec.decoding.loop import speculate
from localspec.decoding.sampling import Rows
from localspec.decoding.tree import TokenTree
from localspec.drafters.composition import asks_model, compose
from localspec.drafters.heterogeneous import HeterogeneousDraftModel, draft_model
from localspec.drafters.trained_head import FedHead, TrainedHead
from localspec.engine import Engine
from localspec.errors import Cancelled, EngineBusy, SessionError
from localspec.llama import library
from localspec.llama.native_context import CacheFull
from localspec.measuring import CALIBRATIONS
from localspec.policy.policy import Policy
from localspec.scheduling.members import DRAFT, TARGET, Displaced, Member
from localspec.scheduling.seats import Seat, Seats
from localspec.sessions.sessions import OpenedSession
from localspec.sessions.stored_texts import StoredTexts
from localspec.stream import Holder, Stream

if TYPE_CHECKING:
    from localspec.drafters.draft_model import DraftModel
    from localspec.drafters.vocabulary_map import VocabularyMap
    from localspec.llama.options import ModelOptions
    from localspec.llama.seat_cache import SeatCache
    from localspec.llama.shared_context import SharedContext

MEASURED = 128
"""Tokens for which the draft model's cache must have room when its passes are measured."""
ALONE = 2
"""A prompt that is read beside nobody is read in pieces of so many chunks: who comes then waits for
the end of one."""
_ONE_SESSION = "Sessions work only with one answer at a time. Open the model with parallel=1."


class ParallelEngine(Engine):
    """An `Engine` that several threads may ask for answers at once; see `localspec.scheduling`.

    As many answers as there are seats are generated side by side, further ones wait for a seat.
    """

    def serve(self, seats: Seats) -> None:
        """Begin to use seats, whose first one this engine was made over."""
        first = seats.all[0]
        heads = [head.cache for seat in seats.all if isinstance(head := seat.parts.head, FedHead)]
        for cache in heads:
            cache.watch, heads[0].beside = heads[0].watch, heads[1:]
        self._seats = seats
        for seat in seats.all:
            seat.parts = replace(seat.parts, datastore=self._datastore)
        if self._sessions.files is not None:
            known = self._sessions.states.identity
            seats.kept.disk = StoredTexts(self._sessions.files, self.profile, known)
        self._target, self._parts = first.target, first.parts
        watches = [context.watch for context in self._contexts]
        seats.crowd.serve(self.profile, (watches[1] if watches[1:] else None, watches[0]))
        self._places: set[_Place] = set()
        self._state = threading.Lock()  # held while places come and go

    @property
    def parallel(self) -> int:
        """Answers at once."""
        return len(self._seats.all)

    def close(self) -> None:
        """Stop all generations and free models and caches.

        Waits until the streams that other threads iterate have noticed.
        """
        with self._state:
            if self._closed:
                return
            self._closed = True
            places = [*self._places]
        for place in places:
            place.stream.cancel()
            if place.owner == threading.get_ident():
                place.stream.close()
        for place in places:
            place.done.wait()
        self._free()

    def _free(self) -> None:
        self._seats.kept.close()
        for seat in self._seats.all:
            if isinstance(seat.parts.head, FedHead):
                seat.parts.head.cache.close()
        for context in self._seats.shared:
            context.close()
        super()._free()

    def logits(self, tokens: Sequence[int]) -> Rows:
        with self._seat(tokens) as seat:
            self._seats.begin(seat, tokens)
            rows = seat.target.forward(PassRequest(tokens, TokenTree())).rows
            return np.array(rows[-1])

    def first_wrong(self, prompt: Sequence[int], answer: Sequence[int]) -> int | None:
        with self._seat(prompt) as seat:
            self._seats.begin(seat, prompt)
            return first_wrong(seat.target, seat.limits, prompt, answer)

    def likelihood(
        self,
        tokens: Sequence[int],
        alternatives: int = 0,
        *,
        stopped: Callable[[], bool] = lambda: False,
    ) -> list[TokenLogprob]:
        with self._seat(tokens) as seat:
            self._seats.begin(seat, tokens, reuse=False)
            return likelihood(seat.target, seat.limits, tokens, alternatives, stopped=stopped)

    def calibrate(self) -> float:
        with self._seat(()) as seat:
            self.profile.doubts = min(self.profile.doubts, CALIBRATIONS)
            return self._measured_near(seat, (), 0, whole=True)

    def forget(self) -> None:
        with self._seat(()):
            self.profile.forget()
            self._store.remove()
            self._measuring.checked = True

    def open_session(self, path: str | os.PathLike[str]) -> OpenedSession:
        raise SessionError(_ONE_SESSION)

    def clear(self) -> int:
        with self._seat(()):
            return self._seats.kept.clear()

    def save_session(self, path: str | os.PathLike[str], conversation: Any = None) -> int:
        raise SessionError(_ONE_SESSION)

    @contextmanager
    def _seat(self, tokens: Sequence[int]) -> Iterator[Seat]:
        """A seat for something that is no answer, with the floor held."""
        self._check_open()
        seat = self._seats.take(tokens, wait=True, stopped=lambda: False)
        assert seat.member is not None
        try:
            with self._seats.rounds.inside(seat.member):
                self._check_open()
                yield seat
        finally:
            self._seats.give_back(seat)

    def _holder(self, answer: Answer) -> tuple[Holder, Callable[[], Generator[Step, None, None]]]:
        place = _Place(self, answer)
        return place, place.begin

    def admit(self, place: _Place) -> None:
        """Let an answer wait for its seat."""
        self._check_open()
        with self._state:
            others = [p.owner for p in self._places]
            self._places.add(place)
        try:
            # Only this thread could end the streams that it would wait for.
            alone = others.count(threading.get_ident()) >= len(self._seats.all)
            if alone:
                raise EngineBusy(
                    f"This thread has {len(self._seats.all)} streams open, which is the maximum. "
                    "Finish or close one first."
                )
            place.seat = self._seats.take(
                place.answer.session.context, wait=self._wait, stopped=lambda: place.cancelled
            )
        except BaseException:
            self.dismiss(place)
            raise
        place.member = place.seat.member
        if place.cancelled and place.member is not None:
            self._seats.rounds.cancel(place.member)
        self._check_open_for(place)

    def _check_open_for(self, place: _Place) -> None:
        try:
            self._check_open()
        except BaseException:
            self.dismiss(place)
            raise

    def dismiss(self, place: _Place) -> None:
        """An answer is over: its seat is free."""
        seat, place.seat = place.seat, None
        try:
            if seat is not None:
                self._seats.give_back(seat)
        finally:
            with self._state:
                self._places.discard(place)
            place.done.set()

    def stop(self, place: _Place) -> None:
        """Cancel an answer, wherever it is."""
        # Not the seat's, which may be another answer's by the time that is looked up.
        if place.member is not None:
            self._seats.rounds.cancel(place.member)
        else:
            self._seats.wake()

    def begin(self, answer: Answer, seat: Seat) -> Generator[Step, None, None]:
        """The steps of an answer that has a seat."""
        rounds, stats, tokens = self._seats.rounds, answer.stats, answer.session.context
        assert seat.member is not None
        with rounds.inside(seat.member):
            self._threads.begin()
            known = self._seats.kept.known(tokens) if answer.reuse else 0
            planner, drafter = compose(
                answer.drafting,
                seat.parts,
                self._seats.crowd.view(seat.member, rounds),
                seat.limits,
                greedy=answer.sampling.greedy,
                trees=answer.rule.trees,
                coupled=answer.rule.coupled,
                cannot=seat.target.why_not_draft,
                session=answer.session,
                known=known,
            )
            model, asks = seat.parts.model, asks_model(answer.drafting, seat.parts)
            if isinstance(model, HeterogeneousDraftModel):
                stats.vocabulary = model.summary
            if answer.reuse:
                stats.notices += self._seats.recall(seat, tokens)
            adaptive = isinstance(planner, Policy)
            if isinstance(planner, Policy):
                # Whoever generates already is not kept waiting for what is known well enough.
                if not self.profile.target or not rounds.others(seat.member):
                    known = self._seats.kept.known(tokens)
                    stats.calibration_seconds = self._measured_near(seat, tokens, known)
                stats.account = planner.statement
            seat.target.progress = answer.progress
            stats.cached_tokens = self._seats.begin(seat, tokens, reuse=answer.reuse)
            seat.parts.index.expect(tokens, answer.prediction)
            if asks:
                self._seats.allot(seat, len(tokens))
            drafter.begin(tokens)
            if adaptive and not rounds.others(seat.member):
                with suppress(CacheFull, Displaced):  # there is no room for that now
                    stats.calibration_seconds += self._measuring.behind(
                        seat.cache, seat.parts, tokens, answer.progress
                    )
            seat.drafted()
        target, clock = seat.target, seat.member.clock

        def steps() -> Generator[Step, None, None]:
            requests = speculate(answer.session, drafter, planner, answer.rule, clock=clock)
            return drive(answer.session, requests, target)

        again = partial(reread, answer, target, seat.parts, drafter)
        shifted = with_shifts(answer.session, steps, again)
        return self._in_rounds(shifted, seat, seat.member, answer, asks)

    def _measured_near(
        self, seat: Seat, prompt: Sequence[int], known: int, *, whole: bool = False
    ) -> float:
        """As `Measuring.near`, with the floor held; nothing where answers that pause have the room:
        it is done before another answer."""
        assert seat.member is not None
        with self._seats.rounds.direct(seat.member):
            if not self._seats.open_draft(seat, MEASURED):
                return 0.0
            with suppress(CacheFull, Displaced):
                return self._measuring.near(seat.cache, seat.parts, prompt, known, whole=whole)
        return 0.0

    def _in_rounds(
        self,
        steps: Generator[Step, None, None],
        seat: Seat,
        member: Member,
        answer: Answer,
        asks: bool,
    ) -> Generator[Step, None, None]:
        """The same steps, each made while the answer has the floor; `asks`: whether the draft model
        may be asked."""
        rounds, stats = self._seats.rounds, answer.stats
        try:
            while True:
                asked = rounds.clock()
                rounds.enter(member)
                try:
                    came = rounds.clock()
                    if asks:
                        self._seats.allot(seat, len(answer.session.context))
                    waited, lost = [*member.waited], member.lost
                    step = next(steps, None)
                    self._threads.between()
                    stats.threads = self.threads
                finally:
                    seat.drafted()
                    rounds.leave(member)
                if step is None:
                    return
                if member.lost > lost:
                    # The planner counts what was for this answer; whoever waits, what it took.
                    step = replace(
                        step,
                        seconds=step.seconds + member.lost - lost + came - asked,
                        target_seconds=member.waited[TARGET] - waited[TARGET],
                        draft_seconds=member.waited[DRAFT] - waited[DRAFT],
                    )
                yield step
        finally:
            with rounds.inside(member):
                steps.close()


def seats_over(
    target: SharedContext,
    draft: SharedContext | None,
    vocabulary_map: VocabularyMap | None,
    options: ModelOptions,
    make_head: Callable[[], TrainedHead] | None = None,
) -> Seats:
    """The seats that a `ParallelEngine` serves; `vocabulary_map` where the draft model's tokens are
    not the target's, `make_head` where there is a trained head."""
    size = target.model.vocabulary.size

    def model(cache: SeatCache) -> DraftModel:
        return draft_model(cache, vocabulary_map, way=options.cross_vocabulary, size=size)

    # A processor reads no faster in larger pieces than these, a GPU does, and is soon done.
    small = options.gpu_layers == 0 or not library.accelerated()
    piece = ALONE * options.parallel_chunk if small else None
    # And ggml's attention works on 64 tokens at a time, against all cells that any of them sees.
    # Beside steps of several answers these are all there are (scale A, 7 answers, 2,048 cells: 240
    # ms more for 128 tokens, where the steps take 43 by themselves).
    mixed = not small
    return Seats(
        target,
        draft,
        model,
        chunk=options.parallel_chunk,
        piece=piece,
        mixed=mixed,
        make_head=make_head,
    )


class _Place(Holder):
    """What one stream has of the engine."""

    def __init__(self, engine: ParallelEngine, answer: Answer) -> None:
        self._engine = engine
        self.answer = answer
        self.stream: Stream
        self.seat: Seat | None = None
        self.member: Member | None = None
        self.owner = 0
        self.cancelled = False
        self.done = threading.Event()

    def acquire(self, stream: Stream) -> None:
        self.stream, self.owner = stream, threading.get_ident()
        with suppress(Cancelled):  # the stream knows, and ends by itself
            self._engine.admit(self)

    def begin(self) -> Generator[Step, None, None]:
        assert self.seat is not None
        return self._engine.begin(self.answer, self.seat)

    def release(self, stream: Stream) -> None:
        self._engine.dismiss(self)

    def interrupt(self, stream: Stream) -> None:
        self.cancelled = True
        self._engine.stop(self)
