"""The passes that several answers wait for, made together.

Every answer is generated in the thread of whoever asks for it, step by step, and of these threads
one at a time *has the floor*: it drafts, accepts and changes caches while the others stand still.
It gives the floor up where it needs a pass, or where a step is over. The thread whose request
completes the round (nobody else is still at work) makes the pass for all, and everybody goes on
with their own rows (flat combining: Hendler et al. 2010). So there is no thread that schedules: an
answer alone makes its own passes at once, and what goes wrong in one answer stays in its thread.

A step that a consumer is slow to ask for delays the others for a moment only: see GRACE.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter

from localspec.decoding.sampling import Rows
from localspec.errors import Cancelled, NativeError
from localspec.llama.native_context import CacheFull
from localspec.llama.shared_context import PassPart
from localspec.policy.worth import Bid
from localspec.scheduling.cells import PAUSED, fits, paused, room
from localspec.scheduling.members import BID, DRAFT, TARGET, Displaced, Lane, Member, Request
from localspec.scheduling.next_pass import CHUNK, NextPass

GRACE, LEAST_GRACE, MOST_GRACE = 0.1, 5e-4, 5e-3
"""Part of a pass of the target that others wait for a consumer who is about to ask for the next
step, and the seconds that it is at least and at most. Once it did not come, nobody waits for it
until it does."""


class Rounds:
    """Brings the requests of all members into as few passes as can be.

    Args:
        lanes: by DRAFT and TARGET; the first one may be None.
        cells: tokens for which the target's cache has room.
        chunk: most tokens of prompts in a pass beside steps of other answers, and of one prompt
            where others are read.
        piece: most tokens of prompts in a pass without any step: who comes meanwhile waits for its
            end. Prompts that are there at once share it, as larger passes read faster. None for as
            many as a pass can have.
        mixed: whether a pass may have both, steps and prompts. Where it may not, they take turns.
        make_room: drops something from a lane's cache that nobody needs; whether there was any.
        observe: told about each pass: its lane, its requests, its padding and its seconds.
        weigh: how the seconds of such a pass are shared out.
        pad: by how many tokens it is cheaper to make a pass larger.
        grant: decides about the bids of all, beside the requests of those who have none.
        clock: tells seconds, to the members as well.
    """

    def __init__(
        self,
        lanes: tuple[Lane | None, Lane],
        *,
        cells: int,
        chunk: int = CHUNK,
        piece: int | None = None,
        mixed: bool = True,
        make_room: Callable[[int], bool] = lambda lane: False,
        observe: Callable[[int, Sequence[Request], int, float], None] = lambda *_: None,
        weigh: Callable[[int, Sequence[Request]], Sequence[float]] | None = None,
        pad: Callable[[int, Sequence[Request]], int] = lambda lane, requests: 0,
        grant: Callable[[Sequence[Request], Sequence[Request]], None] = lambda bids, beside: None,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self._lanes = lanes
        self._cells = cells
        self._next = NextPass(lanes, chunk=chunk, piece=piece, mixed=mixed)
        self.mixed = mixed
        self._make_room, self._observe = make_room, observe
        self._weigh = weigh or (lambda lane, requests: [r.tokens for r in requests])
        self._pad, self._grant = pad, grant
        self.clock = clock
        # A stream that nobody holds any more may be closed at any moment of any thread, also of the
        # one that has the floor.
        self._floor = threading.RLock()
        # Who is new cannot wait for the floor: whoever reads a prompt alone keeps it until it sees
        # somebody come.
        self._joining = threading.RLock()
        self._members: tuple[Member, ...] = ()  # the oldest first; replaced, never changed
        self._coming: set[Member] = set()
        self._pending: list[Request] = []
        self._parked: list[Request] = []
        self._serving: Sequence[Request] = ()
        self._grace = LEAST_GRACE
        self._direct = False

    # Taking part.

    def join(self, cells: Callable[[], int]) -> Member:
        """A new member, which is not inside."""
        member = Member(self._floor, cells, self.clock)
        with self._joining:
            self._members = (*self._members, member)
        return member

    def part(self, member: Member) -> None:
        """The opposite; it must not be inside."""
        with self._floor:
            with self._joining:
                self._members = tuple(one for one in self._members if one is not member)
            self._wake()

    def enter(self, member: Member) -> None:
        """Wait for the floor, and take it."""
        self._coming.add(member)  # seen at once by whoever is about to make a pass
        try:
            self._floor.acquire()
        finally:
            self._coming.discard(member)
        member.inside, member.late = True, False

    def leave(self, member: Member) -> None:
        """Give the floor up."""
        member.inside = False
        member.since, member.thread = self.clock(), threading.get_ident()
        self._wake()
        self._floor.release()

    @contextmanager
    def inside(self, member: Member) -> Iterator[None]:
        """Have the floor meanwhile."""
        self.enter(member)
        try:
            yield
        finally:
            self.leave(member)

    @contextmanager
    def direct(self, member: Member) -> Iterator[None]:
        """Meanwhile a member, which has the floor, makes passes by itself: they are measured."""
        # They overwrite the rows that others were given, and have not come to look at yet.
        member.request = Request(member, TARGET, None)  # waits as others do, also for such as it
        self._wake()
        try:
            while any(one.inside and one.request is None for one in self._members):
                member.turn.wait(LEAST_GRACE)
        finally:
            member.request = None
        self._direct = True
        try:
            yield
        finally:
            self._direct = False

    def cancel(self, member: Member) -> None:
        """End its wait for a pass, or the pass that is made for it alone, with Cancelled. From any
        thread, and without waiting for one."""
        member.cancelled = True
        serving = self._serving
        if len(serving) == 1 and serving[0].member is member:
            lane = self._lanes[serving[0].lane]
            assert lane is not None
            lane.cancel()
        if self._floor.acquire(blocking=False):  # else whoever has it wakes who is cancelled
            try:
                member.turn.notify()
            finally:
                self._floor.release()

    @property
    def members(self) -> tuple[Member, ...]:
        """All of them, the oldest first."""
        return self._members

    def others(self, member: Member) -> list[Member]:
        """Who else asks for passes at present."""
        return [m for m in self._members if m is not member and not m.late]

    def chunk(self, member: Member) -> int:
        """Tokens that the next piece of its prompt should have at most."""
        if self._direct:
            return self._next.longest
        return self._next.chunk if self._coming or self.others(member) else self._next.piece

    # Asking for passes; the caller has the floor.

    def decode(self, member: Member, lane: int, part: PassPart) -> tuple[Rows, float]:
        """The rows of a part, valid until the member asks for the next ones, and its share of the
        seconds.

        Raises:
            Cancelled: the member was cancelled.
            Displaced: its cells were taken away.
            NativeError: llama.cpp failed over this part.
        """
        request, started = Request(member, lane, part), self.clock()
        member.request, member.alone = request, True
        member.reading = request.long
        if self._direct or (len(self._members) == 1 and not self._coming):
            self._run(lane, [request])
        else:
            self._pending.append(request)
            self._await(request)
        seconds = self.clock() - started
        member.waited[lane] += seconds
        if not member.alone:
            member.lost += seconds - request.share
        if request.error is not None:
            raise request.error
        assert request.rows is not None
        member.reading = member.reading and not part.outputs
        return request.rows, request.share

    def bid(self, member: Member, bid: Bid, context: int) -> tuple[int, float]:
        """How many candidates of a bid are verified, behind so many tokens, and the seconds that
        each of them costs: decided once all who make steps have drafted.

        Raises:
            Cancelled: the member was cancelled.
        """
        request, started = Request(member, BID, None, bid, context), self.clock()
        member.request = request
        self._pending.append(request)
        self._await(request)
        member.lost += self.clock() - started
        return request.granted

    def wait_for_room(self, member: Member, tokens: int) -> None:
        """Until so many tokens fit beside those of the other members, the oldest first.

        Raises:
            Cancelled: the member was cancelled.
        """
        if not self._parked and fits(self._members, member, tokens, self._cells):
            return
        request = member.request = Request(member, TARGET, None)
        self._parked.append(request)
        self._wake()
        try:
            while not (self._first(request) and fits(self._members, member, tokens, self._cells)):
                if member.cancelled:
                    raise Cancelled("Stopped on request.")
                idle = paused(self._members, member, self.clock())
                if idle and self._first(request):
                    self._displace(idle[-1])
                else:
                    member.turn.wait(PAUSED)
        finally:
            self._parked.remove(request)
            member.request = None
            self._wake()

    def _await(self, request: Request) -> None:
        member = request.member
        try:
            while not request.done:
                if member.cancelled:
                    raise Cancelled("Stopped on request.")
                wait = self._wait(member)
                if wait is not None and wait <= 0.0:
                    self._make()
                else:
                    member.alone = False
                    member.turn.wait(wait)
        finally:
            if not request.done:
                self._pending.remove(request)
                member.request = None

    def _wait(self, me: Member) -> float | None:
        """Seconds until a pass should be made for those who wait; None while somebody is sure to
        come, who then sees to it."""
        if self._coming:
            return None
        now, longest, thread = self.clock(), 0.0, threading.get_ident()
        for member in self._members:
            if member.request is not None or member is me:
                continue
            if member.inside:
                return None
            if member.late or member.thread == thread:  # this thread cannot ask for it meanwhile
                continue
            left = member.since + self._grace - now
            if left <= 0.0:
                member.late = True
            longest = max(longest, left)
        return longest

    def _wake(self) -> None:
        """Have somebody look whether a pass is due, and those who may stop waiting."""
        for request in self._parked:
            request.member.turn.notify()
        for request in self._pending:
            if request.member.cancelled:
                request.member.turn.notify()
        if self._pending:
            self._pending[0].member.turn.notify()

    # Making them.

    def _make(self) -> None:
        """One pass for those who can be served together."""
        lane, requests = self._next.choose(self._pending)
        self._pending = [request for request in self._pending if request not in requests]
        try:
            if lane == BID:
                self._grant(requests, [r for r in self._pending if r.lane == TARGET])
                for request in requests:
                    self._finish(request)
            else:
                self._run(lane, requests)
        finally:
            for request in requests:
                if not request.done:  # an interrupt: each asks again
                    self._pending.append(request)
            self._wake()

    def _run(self, number: int, requests: list[Request]) -> None:
        """Make a pass, again and again until every request has its rows or an error."""
        lane = self._lanes[number]
        assert lane is not None
        while True:
            for request in requests:
                if request.member.cancelled:
                    self._finish(request, error=Cancelled("Stopped on request."))
            requests = [request for request in requests if not request.done]
            if not requests:
                return
            alone = len(requests) == 1
            parts = [request.part for request in requests if request.part is not None]
            padding = 0 if alone else self._pad(number, requests)
            lane.resume()
            self._serving, started = requests, self.clock()
            try:
                rows = lane.decode(parts, padding)
            except Cancelled:
                lane.undo(parts)
                continue
            except CacheFull as error:
                if not self._make_room(number):
                    self._take_from_the_youngest(number, requests, error)
                continue
            except NativeError as error:
                lane.undo(parts)
                if alone:
                    self._finish(requests[0], error=error)
                else:  # one of them may be to blame
                    for request in requests:
                        self._run(number, [request])
                continue
            finally:
                self._serving = ()
            seconds = self.clock() - started
            if number == TARGET:
                self._grace = max(LEAST_GRACE, min(GRACE * seconds, MOST_GRACE))
            weights = [1.0] if alone else self._weigh(number, requests)
            whole = sum(weights) or 1.0
            for request, found, weight in zip(requests, rows, weights, strict=True):
                request.share = seconds * weight / whole
                request.member.alone = alone and request.member.alone
                self._finish(request, rows=found)
            self._observe(number, requests, padding, seconds)
            return

    @staticmethod
    def _finish(
        request: Request, *, rows: Rows | None = None, error: BaseException | None = None
    ) -> None:
        request.rows, request.error, request.done = rows, error, True
        request.member.request = None
        request.member.turn.notify()

    def _take_from_the_youngest(self, lane: int, requests: list[Request], error: CacheFull) -> None:
        """The cache is full of what is needed: the youngest member gives its cells away."""
        holding = [member for member in self._members if member.cells()]
        youngest = max(requests, key=lambda r: self._members.index(r.member))
        if lane == DRAFT or holding in ([], [youngest.member]):
            self._finish(youngest, error=error)
            return
        self._displace(holding[-1])

    def _displace(self, member: Member) -> None:
        member.displace()
        request = member.request
        if request is not None and request.lane == TARGET and request.part is not None:
            if request in self._pending:
                self._pending.remove(request)
            self._finish(request, error=Displaced("The cells were needed by an older answer."))

    def room(self, member: Member) -> int:
        """Tokens for which there is room beside those of the other members."""
        return room(self._members, member, self._cells)

    def _first(self, request: Request) -> bool:
        order = self._members.index
        return all(order(r.member) >= order(request.member) for r in self._parked)
