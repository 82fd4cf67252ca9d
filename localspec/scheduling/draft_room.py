"""Allocation of the draft model's cache, which all answers share.

A draft cannot be broken off for want of cells, since what was drawn has to be verified. So cells
are granted before a step, as the capacity of a seat's cache; a pass of the draft model can then
only find kept texts in its way, which go. Where there is too little, younger answers that are not
drafting let go of theirs, else the step does not use the draft model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil
from typing import Protocol

from localspec.llama.context_params import MAX_TREE
from localspec.llama.seat_cache import SeatCache
from localspec.llama.shared_context import SharedContext

LEAST = 8
"""Tokens of a draft for which there has to be room."""


class DraftSeat(Protocol):
    """See `localspec.scheduling.seats.SharedSeat`."""

    draft_cache: SeatCache | None
    drafting: bool

    def forget_draft(self) -> None: ...


class DraftRoom:
    """Gives out the cells of a draft model's cache.

    Args:
        capacity: tokens of the target that an answer may have; the draft model's may be more.
        seats: those in use, the oldest answer first.
    """

    def __init__(
        self, shared: SharedContext, capacity: int, seats: Callable[[], Sequence[DraftSeat]]
    ) -> None:
        self._shared = shared
        self._ratio = max(1.0, shared.capacity / capacity)
        self._seats = seats

    def grant(self, seat: DraftSeat, text: int) -> None:
        """Let a seat draft after so many target tokens, as far as there is room. It counts as
        drafting until it says otherwise."""
        cache = seat.draft_cache
        assert cache is not None
        seat.drafting = True
        least, most = (
            min(self._shared.capacity, ceil((text + nodes) * self._ratio))
            for nodes in (LEAST, MAX_TREE)
        )
        seats = self._seats()
        for younger in reversed(seats[seats.index(seat) + 1 :]):
            if self._left(seat) >= least:
                break
            if not younger.drafting:
                younger.forget_draft()
        left = self._left(seat)
        if left < least:
            seat.forget_draft()
        cache.capacity = min(most, left) if left >= least else 0

    def open_to(self, seat: DraftSeat) -> int:
        """Let a seat have all that nobody else holds; returns how many tokens that is."""
        cache = seat.draft_cache
        assert cache is not None
        cache.capacity = max(0, min(self._shared.capacity, self._left(seat)))
        return cache.capacity

    def _left(self, seat: DraftSeat) -> int:
        """Cells that no other seat holds or was granted, counting shared texts once."""
        own, common = 0, dict[object, int]()
        for one in self._seats():
            cache = one.draft_cache
            if one is seat or cache is None:
                continue
            text, shared = cache.common
            own += max(cache.held, cache.capacity if one.drafting else 0) - shared
            common[text] = max(shared, common.get(text, 0))
        assert seat.draft_cache is not None
        text, shared = seat.draft_cache.common
        return self._shared.cells - own - sum(common.values()) + min(shared, common.get(text, 0))
