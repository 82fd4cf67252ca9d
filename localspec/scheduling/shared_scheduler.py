"""The scheduler of several answers: once all tasks wait, it chooses some and makes one pass for
them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from localspec.decoding.sampling import Rows
from localspec.errors import Cancelled, NativeError
from localspec.llama.batch import PassPart
from localspec.llama.native_context import CacheFull
from localspec.llama.shared_context import SharedContext
from localspec.policy.profile import PairProfile
from localspec.policy.worth import Bid
from localspec.scheduling.scheduler import Scheduler
from localspec.scheduling.shared_costs import SharedCosts
from localspec.scheduling.task import Displaced, Task, Wait

PAUSED = 1.0  # seconds that a task waits to be read, after which its cells may be given to others
ASKED = Wait.BID, Wait.DRAFT, Wait.TARGET  # that a pass, or a decision for all, answers
CHUNK = 64  # default tokens of prompts in a pass beside steps


class SharedScheduler(Scheduler):
    """Brings what all tasks ask for into few passes. Prompts and steps take turns.

    Args:
        caches: by `Wait.DRAFT` and `Wait.TARGET`.
        cells: tokens for which the target's cache has room.
        chunk: most tokens of one prompt beside other prompts, and of prompts beside steps.
        piece: most tokens of prompts in a pass, for whose end others wait; None for all that fit.
        make_room: drops something from a cache that nobody needs; whether there was any.
    """

    shares = True

    def __init__(
        self,
        seats: int,
        caches: Mapping[Wait, SharedContext],
        *,
        cells: int,
        chunk: int = CHUNK,
        piece: int | None = None,
        make_room: Callable[[], bool] = lambda: False,
        take: Callable[[Task], None] = lambda task: None,
        give_back: Callable[[Task], None] = lambda task: None,
    ) -> None:
        super().__init__(seats, take=take, give_back=give_back, interrupt=self._end_pass)
        self._caches, self._cells, self._make_room = caches, cells, make_room
        self._longest = caches[Wait.TARGET].batch  # pass of the target
        self._chunk, self._piece = chunk, min(self._longest, piece or self._longest)
        self._read_draft = False  # whether the latest pass was over a prompt, in the draft model
        self._read: set[Wait] = set()  # where the latest pass was over prompts
        self.costs = SharedCosts(PairProfile())
        self._serving: Sequence[Task] = ()
        self._direct = False
        self._timer = threading.Timer(0, self.wake)

    def _end_pass(self, task: Task) -> None:
        """Where it is made for this task alone. From any thread."""
        serving = self._serving
        if len(serving) == 1 and serving[0] is task and task.wants is not None:
            self._caches[task.wants].cancel()

    # From a task.

    def decode(self, task: Task, wait: Wait, part: PassPart) -> tuple[Rows, float]:
        """The rows of a part, valid until the task asks again, and its share of the seconds. Raises
        Cancelled; Displaced if its cells were taken away; NativeError."""
        started = self.clock()
        task.want(wait, part=part)
        task.reading = task.long
        task.alone = len(self.tasks) == 1 and not self.waiting
        if self._direct or task.alone:
            self._run([task])
            task.wants = None
            if task.failed is not None:
                raise task.failed
        else:
            self.wait(task)
            task.lost -= task.share
        task.waited[wait] += self.clock() - started
        assert task.rows is not None
        task.reading = task.reading and not part.outputs
        return task.rows, task.share

    def bid(self, task: Task, bid: Bid, context: int) -> tuple[int, float]:
        """How many candidates of a bid are verified, after so many tokens, and the seconds of each:
        decided once all who make steps have drafted."""
        task.want(Wait.BID, bid=bid, size=context)
        self.wait(task)
        return task.granted

    def wait_for_room(self, task: Task, tokens: int) -> None:
        """Until so many tokens fit beside those of the other tasks, the oldest first."""
        task.want(Wait.ROOM, size=tokens)
        if self._first(task) and self._fits(task):
            task.wants = None
        else:
            self.wait(task)

    @contextmanager
    def direct(self) -> Iterator[None]:
        """Meanwhile the passes of a task are made at once and for nobody else: to measure them.

        Only before it asked for any. Then those who have rows to look at, views that the next pass
        overwrites, are older and have run already."""
        self._direct = True
        try:
            yield
        finally:
            self._direct = False

    def others(self, task: Task) -> list[Task]:
        """Who else asks for passes at present."""
        return [one for one in self.tasks if one is not task and not one.idle]

    def chunk(self, task: Task) -> int:
        """Tokens that the next piece of its prompt should have at most."""
        if self._direct:
            return self._longest
        return self._chunk if self.waiting or self.others(task) else self._piece

    def room(self, task: Task) -> int:
        """Tokens for which there is room beside those of the other tasks."""
        return self._cells - sum(_cells(one) for one in self.tasks if one is not task)

    # In the thread.

    def _look(self, task: Task) -> None:
        if task.wants is Wait.ROOM and self._first(task):
            if self._fits(task):
                task.finish()
            else:
                self._displace_paused(task)

    def _serve(self) -> bool:
        asked = [task for task in self.tasks if task.wants in ASKED and not task.done]
        if not asked:
            return False
        asked.sort(key=lambda task: task.since)
        wait, tasks = self._choose(asked)
        if wait is not Wait.BID:
            self._run(tasks)
            return True
        self.costs.grant(tasks, [task for task in asked if task.wants is Wait.TARGET])
        for task in tasks:
            task.finish()
        return True

    # The next pass.

    def _choose(self, asked: Sequence[Task]) -> tuple[Wait, list[Task]]:
        """What is made next, and for whom."""
        bids, drafting, verifying = (
            [task for task in asked if task.wants is wait] for wait in ASKED
        )
        reading = bool(drafting) and all(task.long for task in drafting)
        if bids and (not drafting or reading):
            return Wait.BID, bids
        # A long prompt in the draft model takes turns with the target's passes.
        if not drafting or (reading and verifying and self._read_draft):
            wait, asked = Wait.TARGET, verifying
        else:
            wait, asked = Wait.DRAFT, drafting
        self._read_draft = wait is Wait.DRAFT and reading
        return wait, self._fitting(wait, asked)

    def _fitting(self, wait: Wait, asked: Sequence[Task]) -> list[Task]:
        """As many as one pass can have, steps before prompts."""
        cache = self._caches[wait]
        short = [task for task in asked if not task.long]
        long = [task for task in asked if task.long]
        most = self._chunk if short else max(self._chunk, self._piece)
        if short and long:
            short, long = (short, []) if wait in self._read else ([], long)
        (self._read.discard if short else self._read.add)(wait)
        tokens = rows = read = 0
        small = False
        chosen: list[Task] = []
        for task in [*short, *long]:
            assert task.part is not None
            size, outputs = task.size, task.part.outputs
            if chosen and (tokens + size > cache.batch or rows + outputs > cache.rows):
                continue
            if task.long:
                # Passes of 64 tokens and more take other kernels, which round otherwise: what is
                # shorter alone is shorter beside other prompts too, and reads as it does alone.
                small = small or size < CHUNK
                if read and read + size > (CHUNK if small else most):
                    continue
                read += size
            chosen.append(task)
            tokens, rows = tokens + size, rows + outputs
        return chosen

    def _run(self, tasks: Sequence[Task]) -> None:
        """Make a pass, again and again until every task has its rows or an error."""
        wait = tasks[0].wants
        assert wait is not None
        cache = self._caches[wait]
        while True:
            for task in tasks:
                if task.cancelled:
                    task.finish(error=Cancelled("Stopped on request."))
            tasks = [task for task in tasks if not task.done]
            if not tasks:
                return
            parts = [task.part for task in tasks if task.part is not None]
            cache.resume()
            self._serving, started = tasks, self.clock()
            try:
                rows = cache.decode(parts)
            except Cancelled:
                cache.undo(parts)
                continue
            except CacheFull as error:
                if not self._make_room():
                    self._take_from_the_youngest(tasks, error)
                continue
            except NativeError as error:
                cache.undo(parts)
                if len(tasks) == 1:
                    tasks[0].finish(error=error)
                else:  # one of them may be to blame
                    for task in tasks:
                        self._run([task])
                continue
            finally:
                self._serving = ()
            self._share(wait, tasks, rows, self.clock() - started)
            return

    def _share(
        self, wait: Wait, tasks: Sequence[Task], rows: Sequence[Rows], seconds: float
    ) -> None:
        """Give everybody rows and a share of the seconds."""
        weights = self.costs.weigh(wait, tasks) if len(tasks) > 1 else [1.0]
        whole = sum(weights) or 1.0
        for task, found, weight in zip(tasks, rows, weights, strict=True):
            task.share = seconds * weight / whole
            task.finish(rows=found)
        self.costs.passed(wait, tasks, seconds)

    # Room.

    def _first(self, task: Task) -> bool:
        """Whether nobody older waits for room."""
        older = self.tasks[: self.tasks.index(task)]
        return all(one.wants is not Wait.ROOM for one in older)

    def _fits(self, task: Task) -> bool:
        left = self.room(task)
        return left == self._cells or task.size <= left

    def _displace_paused(self, me: Task) -> None:
        """Take the cells of the youngest task that nobody has read for long."""
        now = self.clock()
        idle = [task for task in self.tasks if task is not me and task.idle and _cells(task)]
        paused = [task for task in idle if now - task.since > PAUSED]
        if paused:
            _displace(paused[-1])
            self.wake()
        elif idle and not self._timer.is_alive():
            self._timer = threading.Timer(PAUSED / 4, self.wake)
            self._timer.daemon = True
            self._timer.start()

    def _take_from_the_youngest(self, tasks: Sequence[Task], error: CacheFull) -> None:
        """The cache is full of what is needed: the youngest task gives its cells away."""
        holding = [task for task in self.tasks if _cells(task)]
        youngest = max(tasks, key=self.tasks.index)
        if youngest.wants is Wait.DRAFT or holding in ([], [youngest]):
            youngest.finish(error=error)
        else:
            _displace(holding[-1])


def _displace(task: Task) -> None:
    task.seat.displace()
    if task.wants is Wait.TARGET and not task.done:
        task.finish(error=Displaced("The cells were needed by an older answer."))


def _cells(task: Task) -> int:
    """Tokens that it holds in the target's cache and does not share."""
    return 0 if task.seat is None else task.seat.cells
