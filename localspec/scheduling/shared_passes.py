"""Passes that several tasks share: once all wait, some requests are chosen and one pass is made for
them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from localspec.decoding.sampling import Rows
from localspec.errors import Cancelled, NativeError
from localspec.llama.batch import PassPart
from localspec.llama.native_context import CacheFull
from localspec.llama.shared_context import SharedContext
from localspec.policy.worth import Bid
from localspec.scheduling.next_pass import CHUNK, NextPass
from localspec.scheduling.scheduler import Scheduler
from localspec.scheduling.shared_costs import SharedCosts
from localspec.scheduling.task import Displaced, Request, Task, Wait

PAUSED = 1.0  # seconds that a task waits to be read, after which its cells may be given to others


class SharedPasses:
    """Brings the requests of all tasks into few passes.

    Args:
        caches: by `Wait.DRAFT` and `Wait.TARGET`.
        cells: tokens for which the target's cache has room.
        chunk: most tokens of a prompt in a pass, where others are read.
        piece: most tokens of prompts in a pass, for whose end others wait; None for all that fit.
        make_room: drops something from a cache that nobody needs; whether there was any.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        caches: dict[Wait, SharedContext],
        *,
        cells: int,
        chunk: int = CHUNK,
        piece: int | None = None,
        make_room: Callable[[], bool] = lambda: False,
    ) -> None:
        self._scheduler, self._caches, self._cells = scheduler, caches, cells
        self._next = NextPass(caches, chunk=chunk, piece=piece)
        self._make_room = make_room
        self.costs: SharedCosts | None = None
        self._asked: list[Request] = []  # in this order
        self._serving: Sequence[Request] = ()
        self._direct = False
        self._timer = threading.Timer(0, scheduler.wake)

    def interrupt(self, task: Task) -> None:
        """End the pass that is made for a task alone. From any thread."""
        serving = self._serving
        if len(serving) == 1 and serving[0].task is task:
            self._caches[serving[0].wait].cancel()

    # From a task.

    def decode(self, task: Task, wait: Wait, part: PassPart) -> tuple[Rows, float]:
        """The rows of a part, valid until the task asks again, and its share of the seconds. Raises
        Cancelled; Displaced if its cells were taken away; NativeError."""
        request, started = Request(task, wait, part=part), self._scheduler.clock()
        task.reading = request.long
        task.alone = len(self._scheduler.tasks) == 1 and not self._scheduler.waiting
        if self._direct or task.alone:
            self._run([request])
            if request.error is not None:
                raise request.error
        else:
            self._asked.append(request)
            self._scheduler.wait(request)
            task.lost -= request.share
        task.waited[wait] += self._scheduler.clock() - started
        assert request.rows is not None
        task.reading = task.reading and not part.outputs
        return request.rows, request.share

    def bid(self, task: Task, bid: Bid, context: int) -> tuple[int, float]:
        """How many candidates of a bid are verified, after so many tokens, and the seconds of each:
        decided once all who make steps have drafted."""
        request = Request(task, Wait.BID, bid=bid, tokens=context)
        self._asked.append(request)
        self._scheduler.wait(request)
        return request.granted

    def wait_for_room(self, task: Task, tokens: int) -> None:
        """Until so many tokens fit beside those of the other tasks, the oldest first."""
        request = Request(task, Wait.ROOM, tokens=tokens)
        if not (self._first(request) and self._fits(request)):
            self._scheduler.wait(request)

    @contextmanager
    def direct(self) -> Iterator[None]:
        """Meanwhile the passes of a task are made at once and for nobody else: to measure them.

        Only before its first request. Then those who have rows to look at, views that the next pass
        overwrites, are older and have run already."""
        self._direct = True
        try:
            yield
        finally:
            self._direct = False

    def others(self, task: Task) -> list[Task]:
        """Who else asks for passes at present."""
        return [one for one in self._scheduler.tasks if one is not task and not one.idle]

    def chunk(self, task: Task) -> int:
        """Tokens that the next piece of its prompt should have at most."""
        if self._direct:
            return self._next.longest
        shared = self._scheduler.waiting or self.others(task)
        return self._next.chunk if shared else self._next.piece

    def room(self, task: Task) -> int:
        """Tokens for which there is room beside those of the other tasks."""
        tasks = self._scheduler.tasks
        return self._cells - sum(_cells(one) for one in tasks if one is not task)

    # For the scheduler.

    def look(self, request: Request) -> None:
        """Finish a request that needs no pass."""
        if request.wait is Wait.ROOM and self._first(request):
            if self._fits(request):
                request.finish()
            else:
                self._displace_paused(request.task)

    def serve(self) -> bool:
        """Make a pass for those who wait; False if nobody does."""
        self._asked = [request for request in self._asked if not request.done]
        if not self._asked:
            return False
        wait, requests = self._next.choose(self._asked)
        if wait is not Wait.BID:
            self._run(requests)
            return True
        if self.costs is not None:
            self.costs.grant(requests, [r for r in self._asked if r.wait is Wait.TARGET])
        for request in requests:
            request.finish()
        return True

    # Passes.

    def _run(self, requests: Sequence[Request]) -> None:
        """Make a pass, again and again until every request has its rows or an error."""
        wait = requests[0].wait
        cache, clock = self._caches[wait], self._scheduler.clock
        while True:
            for request in requests:
                if request.task.cancelled:
                    request.finish(error=Cancelled("Stopped on request."))
            requests = [request for request in requests if not request.done]
            if not requests:
                return
            parts = [request.part for request in requests if request.part is not None]
            cache.resume()
            self._serving, started = requests, clock()
            try:
                rows = cache.decode(parts)
            except Cancelled:
                cache.undo(parts)
                continue
            except CacheFull as error:
                if not self._make_room():
                    self._take_from_the_youngest(requests, error)
                continue
            except NativeError as error:
                cache.undo(parts)
                if len(requests) == 1:
                    requests[0].finish(error=error)
                else:  # one of them may be to blame
                    for request in requests:
                        self._run([request])
                continue
            finally:
                self._serving = ()
            self._share(requests, rows, clock() - started)
            return

    def _share(self, requests: Sequence[Request], rows: Sequence[Rows], seconds: float) -> None:
        """Give everybody rows and a share of the seconds."""
        wait, weights = requests[0].wait, [1.0]
        if len(requests) > 1:
            weights = [float(request.tokens) for request in requests]
            if self.costs is not None:
                weights = [*self.costs.weigh(wait, requests)]
        whole = sum(weights) or 1.0
        for request, found, weight in zip(requests, rows, weights, strict=True):
            request.share = seconds * weight / whole
            request.finish(rows=found)
        if self.costs is not None:
            self.costs.passed(wait, requests, seconds)

    # Room.

    def _first(self, request: Request) -> bool:
        """Whether nobody older waits for room."""
        for task in self._scheduler.tasks:
            if task is request.task:
                return True
            if task.request is not None and task.request.wait is Wait.ROOM:
                return False
        return True

    def _fits(self, request: Request) -> bool:
        left = self.room(request.task)
        return left == self._cells or request.tokens <= left

    def _displace_paused(self, me: Task) -> None:
        """Take the cells of the youngest task that nobody has read for long."""
        now, wake = self._scheduler.clock(), self._scheduler.wake
        idle = [t for t in self._scheduler.tasks if t is not me and t.idle and _cells(t)]
        paused = [task for task in idle if now - task.since > PAUSED]
        if paused:
            self._displace(paused[-1])
            wake()
        elif idle and not self._timer.is_alive():
            self._timer = threading.Timer(PAUSED / 4, wake)
            self._timer.daemon = True
            self._timer.start()

    def _take_from_the_youngest(self, requests: Sequence[Request], error: CacheFull) -> None:
        """The cache is full of what is needed: the youngest task gives its cells away."""
        tasks = self._scheduler.tasks
        holding = [task for task in tasks if _cells(task)]
        youngest = max(requests, key=lambda request: tasks.index(request.task))
        if youngest.wait is Wait.DRAFT or holding in ([], [youngest.task]):
            youngest.finish(error=error)
        else:
            self._displace(holding[-1])

    @staticmethod
    def _displace(task: Task) -> None:
        task.seat.displace()
        request = task.request
        if request is not None and request.wait is Wait.TARGET and not request.done:
            request.finish(error=Displaced("The cells were needed by an older answer."))


def _cells(task: Task) -> int:
    """Tokens that it holds in the target's cache and does not share."""
    return 0 if task.seat is None else task.seat.cells
