"""An engine that generates several answers at once, in passes that they share."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from localspec.drafters.trained_head import FedHead
from localspec.engine import Engine
from localspec.errors import SessionError
from localspec.llama.native_context import CacheFull
from localspec.policy.target_costs import TargetCosts
from localspec.scheduling.pass_costs import SharedCosts
from localspec.scheduling.seats import Seat, Seats, SharedSeat
from localspec.scheduling.shared_costs import SharedTargetCosts
from localspec.scheduling.task import Displaced, Task, Wait
from localspec.sessions.conversation_files import StoredTexts
from localspec.sessions.sessions import OpenedSession

MEASURED = 128
"""Tokens for which the draft model's cache must have room when its passes are measured."""
_ONE_SESSION = "Sessions work only with one answer at a time. Open the model with parallel=1."


class ParallelEngine(Engine):
    """An `Engine` that generates as many answers side by side as it has seats; others wait."""

    def __init__(self, seats: Seats, **more: Any) -> None:
        super().__init__(seats.all, **more)
        heads = [head.cache for seat in seats.all if isinstance(head := seat.parts.head, FedHead)]
        for cache in heads:
            cache.watch, heads[0].beside = heads[0].watch, heads[1:]
        self._seats, self._scheduler = seats, seats.scheduler
        if self._sessions.files is not None:
            known = self._sessions.states.identity
            seats.kept.disk = StoredTexts(self._sessions.files, self.profile, known)
        watches = dict(
            zip((Wait.TARGET, Wait.DRAFT), (c.watch for c in self._contexts), strict=False)
        )
        self._costs = seats.passes.costs = SharedCosts(self.profile, watches)

    @property
    def parallel(self) -> int:
        """Answers at once."""
        return len(self._seats.all)

    def _free(self) -> None:
        self._seats.kept.close()
        for seat in self._seats.all:
            if isinstance(seat.parts.head, FedHead):
                seat.parts.head.cache.close()
        for context in self._seats.shared:
            context.close()
        super()._free()

    def clear(self) -> int:
        return self._call(self._seats.kept.clear)

    def open_session(self, path: str | os.PathLike[str]) -> OpenedSession:
        raise SessionError(_ONE_SESSION)

    def save_session(self, path: str | os.PathLike[str], conversation: Any = None) -> int:
        raise SessionError(_ONE_SESSION)

    def _seat_of(self, task: Task) -> SharedSeat:
        assert isinstance(task.seat, SharedSeat)
        return task.seat

    def _costs_of(self, task: Task) -> TargetCosts | None:
        return SharedTargetCosts(self._costs, task, self._seats.passes)

    def _alone(self, task: Task) -> bool:
        return not self._seats.passes.others(task)

    def _known(self, seat: Seat, tokens: Sequence[int]) -> int:
        return self._seats.kept.known(tokens)

    def _recall(self, seat: Seat, tokens: Sequence[int]) -> list[str]:
        return self._seats.recall(_shared(seat), tokens)

    def _take_up(self, seat: Seat, tokens: Sequence[int], *, reuse: bool) -> int:
        return self._seats.begin(_shared(seat), tokens, reuse=reuse)

    def _allot(self, seat: Seat, text: int) -> None:
        self._seats.allot(_shared(seat), text)

    def _measure(
        self, seat: Seat, prompt: Sequence[int], known: int, *, whole: bool = False
    ) -> float:
        task = _shared(seat).task
        assert task is not None
        # Whoever generates already is not kept waiting for what is known well enough. And nothing
        # is measured where answers that pause have the room: another answer will do.
        if self.profile.target and not whole and not self._alone(task):
            return 0.0
        with self._seats.passes.direct(task):
            if not self._seats.open_draft(_shared(seat), MEASURED):
                return 0.0
            with suppress(CacheFull, Displaced):
                return super()._measure(seat, prompt, known, whole=whole)
        return 0.0


def _shared(seat: Seat) -> SharedSeat:
    assert isinstance(seat, SharedSeat)
    return seat
