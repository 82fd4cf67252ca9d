"""Seats: what an answer needs to be generated beside others, taken and given back."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from localspec.decoding.interfaces import Limits, PassRequest, PassResult
from localspec.decoding.sampling import Rows
from localspec.drafters.draft_model import DraftModel
from localspec.drafters.registry import Parts
from localspec.drafters.trained_head import TrainedHead
from localspec.errors import Cancelled, EngineBusy
from localspec.llama.seat_cache import SeatCache
from localspec.llama.shared_context import PassPart, SharedContext
from localspec.llama.target import LlamaTarget, shared_prefix
from localspec.scheduling.crowd import Crowd
from localspec.scheduling.draft_room import DraftRoom
from localspec.scheduling.kept_texts import KeptTexts
from localspec.scheduling.members import DRAFT, TARGET, Displaced, Member
from localspec.scheduling.rounds import Rounds

ROOM = 16
"""Tokens of an answer for which there has to be room when it begins, or begins anew."""


class SeatTarget(LlamaTarget):
    """The target as one of several answers sees it."""

    def __init__(self, cache: SeatCache, rounds: Rounds) -> None:
        super().__init__(cache)
        self._cache = cache
        self._rounds = rounds
        self.member: Member | None = None
        self.drafted: Callable[[], None] = lambda: None
        """Told that a draft, if there is one, is complete."""

    def forward(self, request: PassRequest) -> PassResult:
        self.drafted()
        try:
            return super().forward(request)
        except Displaced:
            assert self.member is not None
            needed = len(request.context) + len(request.tree) + ROOM
            self._rounds.wait_for_room(self.member, min(needed, self.capacity))
            return self.forward(request)


class Seat:
    """One of the places for an answer.

    Attributes:
        cache, draft_cache: its parts of the shared caches; empty while nobody sits here.
        target: what answers its passes.
        parts: what its drafts are made of; its own n-gram index is among them.
        limits: of its trees.
        member: whoever sits here, in the rounds.
        text: tokens of the last answer.
        drafting: whether it may need the cells that its part of the draft's cache was granted.
        keeps: whether its text is kept for answers to come. Every cell that is held costs every
            row of every pass a look at its mask (scale A: half a microsecond, which makes passes
            of eight answers 13 % longer with 1,400 cells), so who takes nothing from others leaves
            nothing either.
    """

    def __init__(
        self,
        number: int,
        rounds: Rounds,
        target: SharedContext,
        draft: SharedContext | None,
        make_model: Callable[[SeatCache], DraftModel],
        head: TrainedHead | None,
    ) -> None:
        self._rounds = rounds
        self.member: Member | None = None
        chunk = self._chunk
        self.cache = SeatCache(target, number, partial(self._decode, TARGET), chunk)
        self.draft_cache: SeatCache | None = None
        model = None
        if draft is not None:
            self.draft_cache = SeatCache(draft, number, partial(self._decode, DRAFT), chunk)
            model = make_model(self.draft_cache)
        self.parts = Parts(model, head=head)
        self.target = SeatTarget(self.cache, rounds)
        self.target.drafted = self.drafted
        self.limits = Limits(self.cache.capacity, self.cache.max_draft, self.cache.max_leaves)
        self.text: Sequence[int] = ()
        self.drafting = False
        self.keeps = True

    @property
    def keeps_draft(self) -> bool:
        """Whether the draft model's cache is in target tokens, so that prompts can share it."""
        return self.parts.model is not None and self.parts.model.cache is self.draft_cache

    @property
    def cells(self) -> int:
        """Cells of the target's cache that are its own, about; not 0 while it holds any: what it
        shares is its own once nobody else has it."""
        held = len(self.cache.tokens)
        return max(min(1, held), held - self.cache.common[1])

    def begin(self, tokens: Sequence[int], kept: KeptTexts) -> int:
        """Share what is known of a prompt; returns how many tokens that is."""
        return kept.begin(tokens, self.cache, self.draft_cache if self.keeps_draft else None)

    def empty(self) -> None:
        """Let go of all cells."""
        self.cache.clear()
        self.forget_draft()

    def forget_draft(self) -> None:
        """Let go of the draft model's cells; not in the middle of a draft."""
        if self.draft_cache is not None and self.parts.model is not None:
            self.draft_cache.clear()
            self.parts.model.forget()

    def drafted(self) -> None:
        """Nothing more is drafted in this step."""
        self.drafting = False

    def sit(self, member: Member) -> None:
        """Begin with an answer."""
        self.member = self.target.member = member
        self.keeps = True
        member.displace = self.cache.clear

    def _decode(self, lane: int, part: PassPart) -> tuple[Rows, float]:
        assert self.member is not None
        return self._rounds.decode(self.member, lane, part)

    def _chunk(self) -> int:
        assert self.member is not None
        return self._rounds.chunk(self.member)


class Seats:
    """All seats over a pair, and the texts that earlier answers left.

    Attributes:
        all: every seat; `shared` are the caches that they are over.

    Args:
        target, draft: the shared caches.
        make_model: makes the draft model over a part of the draft's cache.
        chunk: most tokens of prompts in a pass beside steps of other answers.
        piece: most tokens of prompts in a pass without any step; None for no limit.
        make_head: makes a trained head, with a cache of its own, for one answer.
        mixed: whether a pass may have both.
    """

    def __init__(
        self,
        target: SharedContext,
        draft: SharedContext | None,
        make_model: Callable[[SeatCache], DraftModel],
        *,
        chunk: int,
        piece: int | None = None,
        make_head: Callable[[], TrainedHead] | None = None,
        mixed: bool = True,
    ) -> None:
        self.crowd = Crowd()
        self.kept = KeptTexts(target, draft)
        self.rounds = Rounds(
            (draft, target),
            cells=target.cells,
            chunk=chunk,
            piece=piece,
            mixed=mixed,
            make_room=lambda lane: self.kept.drop_oldest(),
            observe=self.crowd.passed,
            weigh=self.crowd.weigh,
            pad=self.crowd.padding,
            grant=self.crowd.grant,
        )
        self.shared = [context for context in (target, draft) if context is not None]
        self._draft_room = None
        if draft is not None:
            self._draft_room = DraftRoom(draft, target.capacity, self._seated)
        self.all = [
            Seat(number, self.rounds, target, draft, make_model, make_head and make_head())
            for number in range(target.answers)
        ]
        self._free = [*self.all]
        self._queue: deque[object] = deque()
        self._changed = threading.Condition()

    @property
    def taken(self) -> int:
        """Answers that are being generated."""
        return len(self.all) - len(self._free)

    def take(self, tokens: Sequence[int], *, wait: bool, stopped: Callable[[], bool]) -> Seat:
        """A free seat, the one whose last answer had most in common with a prompt. Those who wait
        for one get it in the order in which they came.

        Raises:
            EngineBusy: there is none, and the caller does not wait.
            Cancelled: `stopped` said so meanwhile; see `wake`.
        """
        with self._changed:
            ticket = object()
            self._queue.append(ticket)
            try:
                while not self._free or self._queue[0] is not ticket:
                    if not wait:
                        raise EngineBusy(
                            f"{len(self.all)} answers are being generated, and no more can be at "
                            "once. Wait for one, or cancel it."
                        )
                    self._changed.wait()
                    if stopped():
                        raise Cancelled("Stopped on request.")
                seat = max(self._free, key=lambda seat: shared_prefix(seat.text, tokens))
                self._free.remove(seat)
            finally:
                self._queue.remove(ticket)
                self._changed.notify_all()
        seat.sit(self.rounds.join(lambda: seat.cells))
        return seat

    def wake(self) -> None:
        """Have those who wait for a seat look whether they are still to."""
        with self._changed:
            self._changed.notify_all()

    def recall(self, seat: Seat, tokens: Sequence[int]) -> list[str]:
        """Before a seat begins: keep again what the disk has of a prompt. Returns what the user
        should know, sentences. Called with the floor held."""
        assert seat.member is not None
        room = min(seat.cache.capacity, self.rounds.room(seat.member))
        return self.kept.recall(tokens, room, drafted=seat.keeps_draft)

    def begin(self, seat: Seat, tokens: Sequence[int], *, reuse: bool = True) -> int:
        """Let a seat share what is known of a prompt, unless it is not to `reuse` that; returns how
        many tokens that is. Called with the floor held, once there is room."""
        assert seat.member is not None
        seat.keeps = reuse
        known = self.kept.known(tokens) if reuse else 0
        needed = min(len(tokens) + ROOM, seat.cache.capacity) - known
        self.rounds.wait_for_room(seat.member, needed)
        return seat.begin(tokens, self.kept) if reuse else 0

    def allot(self, seat: Seat, text: int) -> None:
        """Before a seat drafts behind a text of so many tokens: what it may use for that, until it
        has `drafted`. Called with the floor held."""
        if self._draft_room is not None:
            self._draft_room.grant(seat, text)

    def open_draft(self, seat: Seat, tokens: int) -> bool:
        """Let a seat measure the draft model's passes, if so many tokens fit. Called with the floor
        held, which stays with it meanwhile."""
        if self._draft_room is None:
            return True
        return self._draft_room.open_to(seat) >= min(tokens, self.shared[1].capacity)

    def _seated(self) -> list[Seat]:
        """Who has a seat, the oldest answer first."""
        by_member = {seat.member: seat for seat in self.all}
        return [by_member[one] for one in self.rounds.members if one in by_member]

    def give_back(self, seat: Seat) -> None:
        """End an answer, and keep its text."""
        member = seat.member
        assert member is not None
        with self.rounds.inside(member):
            seat.text = [*seat.cache.tokens]
            if seat.keeps:
                self.kept.keep(seat.cache, seat.draft_cache if seat.keeps_draft else None)
            seat.empty()
            seat.drafted()
        self.rounds.part(member)
        seat.member = seat.target.member = None
        with self._changed:
            self._free.append(seat)
            self._changed.notify_all()
