"""The scheduler of several answers: once all tasks wait, it runs a pass for some of them."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from localspec.decoding.sampling import Rows
from localspec.errors import Cancelled, NativeError
from localspec.llama.batch import PassPart
from localspec.llama.native_context import CacheFull, SharedContext
from localspec.policy.profile import PairProfile
from localspec.policy.worth import Bid
from localspec.scheduling.scheduler import Scheduler
from localspec.scheduling.shared_costs import SharedCosts
from localspec.scheduling.task import Preempted, Task, Wait

PAUSED = 1.0  # seconds that a task waits for its reader before its cells may be preempted
REQUESTS = Wait.BID, Wait.DRAFT, Wait.TARGET  # served by a pass, or by a joint decision
CHUNK = 64  # default prompt tokens per pass while decode steps wait


class SharedScheduler(Scheduler):
    """Combines the requests of all tasks into few passes. Prompts and steps alternate. `caches`: by
    `Wait.DRAFT` and `Wait.TARGET`; none for a single task, which shares no passes. `chunk`: most
    tokens per pass of one prompt while other tasks run, of all while steps wait; `piece`: most
    tokens of prompts in a pass without steps, None for all that fit."""

    def __init__(
        self,
        caches: Mapping[Wait, SharedContext],
        *,
        chunk: int = CHUNK,
        piece: int | None = None,
    ) -> None:
        target = caches.get(Wait.TARGET)
        super().__init__(target.answers if target else 1)
        self._caches, self._cells = caches, target.cells if target else 0
        self._longest = target.batch if target else 0  # pass of the target
        self._chunk, self._piece = chunk, min(self._longest, piece or self._longest)
        self._read_draft = False  # whether the draft model read a prompt in the latest pass
        self._read: set[Wait] = set()  # models whose latest pass read prompts
        self.costs = SharedCosts(PairProfile())
        self._serving: tuple[SharedContext, list[Task]] | None = None  # in the current pass
        self._direct = False
        self._timer: threading.Timer | None = None  # wakes it while readers pause

    def make_room(self) -> bool:
        """Evict something unused from the caches; returns whether it could."""
        return False

    def interrupt(self, task: Task) -> None:
        """End the current pass if it is for this task only."""
        if (serving := self._serving) is not None and serving[1] == [task]:
            serving[0].cancel()

    # From a task.

    def decode(self, task: Task, wait: Wait, part: PassPart) -> tuple[Rows, float]:
        """Decode a part of a shared pass; returns rows, valid until the task's next request, and
        its share of the seconds. Raises Cancelled, Preempted or NativeError."""
        started = self.clock()
        task.request(wait, part=part)
        task.reading = task.long
        task.alone = len(self.tasks) == 1 and not self.waiting
        if self._direct or task.alone:
            self._run([task])
            task.waits_for = None
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
        """How many candidates of a bid are verified, and the seconds of each; decided once all
        answers have drafted. `context`: tokens before them."""
        task.request(Wait.BID, bid=bid, size=context)
        self.wait(task)
        return task.granted

    def wait_for_room(self, task: Task, tokens: int) -> None:
        """Wait until this many tokens fit alongside those of other tasks; oldest task first."""
        task.request(Wait.ROOM, size=tokens)
        if self._first(task) and self._fits(task):
            task.waits_for = None
        else:
            self.wait(task)

    @contextmanager
    def direct(self) -> Iterator[None]:
        """Context manager in which a task's passes run immediately and unshared, to time them.

        Only before its first request. Rows are views that the next pass overwrites; tasks that
        still need theirs are older, and have run already."""
        self._direct = True
        try:
            yield
        finally:
            self._direct = False

    def others(self, task: Task) -> list[Task]:
        """The other tasks that request passes now."""
        return [one for one in self.tasks if one is not task and not one.idle]

    def chunk(self, task: Task) -> int:
        """Most tokens for the next chunk of its prompt."""
        if self._direct:
            return self._longest
        return self._chunk if self.waiting or self.others(task) else self._piece

    def room(self, task: Task) -> int:
        """Tokens that fit alongside those of the other tasks."""
        return self._cells - sum(_cells(one) for one in self.tasks if one is not task)

    # In the scheduler's thread.

    def _check(self, task: Task) -> None:
        if task.waits_for is Wait.ROOM and self._first(task):
            if self._fits(task):
                task.finish()
            else:
                self._preempt_paused(task)

    def _serve(self) -> bool:
        asked = [task for task in self.tasks if task.waits_for in REQUESTS and not task.done]
        if not asked:
            return False
        asked.sort(key=lambda task: task.since)
        wait, tasks = self._choose_pass(asked)
        if wait is not Wait.BID:
            self._run(tasks)
            return True
        self.costs.grant(tasks, [task for task in asked if task.waits_for is Wait.TARGET])
        for task in tasks:
            task.finish()
        return True

    # The next pass.

    def _choose_pass(self, asked: Sequence[Task]) -> tuple[Wait, list[Task]]:
        """Choose the next pass, or decision, and its tasks."""
        bids, drafting, verifying = (
            [task for task in asked if task.waits_for is wait] for wait in REQUESTS
        )
        reading = bool(drafting) and all(task.long for task in drafting)
        if bids and (not drafting or reading):
            return Wait.BID, bids
        # The draft model's prefill of a long prompt alternates with passes of the target.
        if not drafting or (reading and verifying and self._read_draft):
            wait, asked = Wait.TARGET, verifying
        else:
            wait, asked = Wait.DRAFT, drafting
        self._read_draft = wait is Wait.DRAFT and reading
        return wait, self._select_tasks(wait, asked)

    def _select_tasks(self, wait: Wait, asked: Sequence[Task]) -> list[Task]:
        """Choose as many tasks as fit into one pass; steps and prompts alternate."""
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
                # Passes over 64 tokens or more use other kernels, which round differently. So a
                # smaller chunk stays in a small pass, with other prompts too, for the same bits.
                small = small or size < CHUNK
                if read and read + size > (CHUNK if small else most):
                    continue
                read += size
            chosen.append(task)
            tokens, rows = tokens + size, rows + outputs
        return chosen

    def _run(self, tasks: Sequence[Task]) -> None:
        """Run a pass, repeatedly, until every task has its rows or an error."""
        wait = tasks[0].waits_for
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
            self._serving, started = (cache, tasks), self.clock()
            try:
                rows = cache.decode(parts)
            except Cancelled:
                cache.undo(parts)
                continue
            except CacheFull as error:
                if not self.make_room():
                    self._preempt_youngest(tasks, error)
                continue
            except NativeError as error:
                cache.undo(parts)
                if len(tasks) == 1:
                    tasks[0].finish(error=error)
                else:  # find the one that fails
                    for task in tasks:
                        self._run([task])
                        if task.rows is not None:  # which the next pass overwrites
                            task.rows = task.rows.copy()
                continue
            finally:
                self._serving = None
            self._share(wait, tasks, rows, self.clock() - started)
            return

    def _share(
        self, wait: Wait, tasks: Sequence[Task], rows: Sequence[Rows], seconds: float
    ) -> None:
        weights = self.costs.weigh(wait, tasks) if len(tasks) > 1 else [1.0]
        whole = sum(weights) or 1.0
        for task, found, weight in zip(tasks, rows, weights, strict=True):
            task.share = seconds * weight / whole
            task.finish(rows=found)
        self.costs.passed(wait, tasks, seconds)

    # Room.

    def _first(self, task: Task) -> bool:
        """Whether no older task waits for room."""
        older = self.tasks[: self.tasks.index(task)]
        return all(one.waits_for is not Wait.ROOM for one in older)

    def _fits(self, task: Task) -> bool:
        left = self.room(task)
        return left == self._cells or task.size <= left

    def _preempt_paused(self, me: Task) -> None:
        """Preempt the youngest task whose reader has paused."""
        now = self.clock()
        idle = [task for task in self.tasks if task is not me and task.idle and _cells(task)]
        paused = [task for task in idle if now - task.since > PAUSED]
        if paused:
            _preempt(paused[-1])
            self.wake()
        elif idle and self._timer is None:
            self._timer = threading.Timer(PAUSED / 4, self._time_passed)
            self._timer.daemon = True
            self._timer.start()

    def _time_passed(self) -> None:
        self._timer = None  # before the turn, which may start another; this thread still lives
        self.wake()

    def _preempt_youngest(self, tasks: Sequence[Task], error: CacheFull) -> None:
        """Preempt the youngest task, as nothing unused is left in the full cache."""
        holding = [task for task in self.tasks if _cells(task)]
        youngest = max(tasks, key=self.tasks.index)
        if youngest.waits_for is Wait.DRAFT or holding in ([], [youngest]):
            youngest.finish(error=error)
        else:
            _preempt(holding[-1])


def _preempt(task: Task) -> None:
    task.slot.preempt()
    if task.waits_for is Wait.TARGET and not task.done:
        task.finish(error=Preempted("The cells were needed by an older answer."))


def _cells(task: Task) -> int:
    """Tokens that a task holds unshared in the target's cache."""
    return 0 if task.slot is None else task.slot.cells
