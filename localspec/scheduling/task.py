"""A task of the scheduler: an answer that is generated, or a question about a text."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from enum import Enum
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from localspec.decoding.sampling import Rows
from localspec.errors import Cancelled, LocalspecError, UsageError
from localspec.llama.batch import PassPart
from localspec.policy.worth import Bid

if TYPE_CHECKING:
    from greenlet import greenlet


AHEAD = 2  # items that may wait for the reader. The task stands still beyond that.
LONG = 16  # tokens without a row, from which on a part is a piece of a prompt


class Wait(Enum):
    """What a task waits for."""

    DRAFT = 0  # a pass of the draft model; comes first, as it leads to one of the target
    TARGET = 1
    BID = 2  # how much of its draft may be verified
    ROOM = 3  # cells of the target's cache
    READER = 4  # that its items are read


class Displaced(LocalspecError):
    """The cells of a task were needed by an older one; it has to read its text again."""


_END = object()
NOT_HERE = (
    "A forked process cannot continue an answer, nor can Python while it ends. Load the model in "
    "the process that uses it."
)


class Task:
    """Work over a seat, in a greenlet of the scheduler's thread, so that it may wait anywhere; what
    it puts is read in other threads.

    Its arguments are those of `Scheduler.submit`; with `ahead` 0 each item is made when asked for.

    Attributes:
        seat: a `localspec.scheduling.seats.Seat`, from when it runs on.
        wants: what it waits for, None while it runs; `since` when.
        size: tokens of the part that it waits for; for which there has to be room; after which it
            makes a bid.
        done: whether it may go on, with an error if it `failed`.
        rows: of its latest pass, valid until it asks again.
        share: of the seconds of that pass.
        granted: to its latest bid: a count of candidates, and seconds for each.
        lost: seconds that it waited, but for its share of passes.
        waited: seconds between request and rows, by `Wait.DRAFT` and `Wait.TARGET`.
        alone: whether its latest pass was for nobody else, and nobody else wanted any.
        reading: whether it is at its prompt, and makes no steps.
        error: what ended it, None where `work` returned.
    """

    def __init__(
        self,
        tokens: Sequence[int],
        work: Callable[[Task], object],
        *,
        wait: bool = True,
        owner: Hashable = None,
        ahead: int = AHEAD,
        wake: Callable[[], None] = lambda: None,
        told: Callable[[], object] | None = None,
    ) -> None:
        self.tokens, self.work, self.may_wait, self.owner = tokens, work, wait, owner
        self._ahead, self._wake, self._told = ahead, wake, told
        self.seat: Any = None
        self.greenlet: greenlet | None = None
        self.wants: Wait | None = None
        self.part: PassPart | None = None
        self.bid: Bid | None = None
        self.size = 0
        self.done = self.cancelled = False
        self.failed: BaseException | None = None
        self.rows: Rows | None = None
        self.share = 0.0
        self.granted = 0, 0.0
        self.lost = self.since = 0.0
        self.waited = {Wait.DRAFT: 0.0, Wait.TARGET: 0.0}
        self.alone = self.reading = True
        self._items: SimpleQueue[Any] = SimpleQueue()
        self._wanted = False
        self.error: BaseException | None = None
        self._ended = threading.Event()
        self._process = os.getpid()

    # In the thread of whoever asked.

    def items(self) -> Iterator[Any]:
        """What it puts, up to its end. Raises Cancelled, or whatever ended it."""
        while True:
            if self.orphaned and not self.ready:
                raise UsageError(NOT_HERE)
            if not self._ahead and self._items.empty():
                self._wanted = True
                self._look()
            item = self._items.get()
            if item is _END:
                break
            if self._ahead:
                self._look()
            yield item
        if self.error is not None:
            raise self.error

    def _look(self) -> None:
        if self.wants is Wait.READER:
            self._wake()

    def wait(self, seconds: float | None = None) -> None:
        """Until it has ended, or so long."""
        if not self.orphaned:
            self._ended.wait(seconds)

    @property
    def orphaned(self) -> bool:
        """Whether the thread that runs it is missing: after a fork, and while Python ends."""
        return self._process != os.getpid() or sys.is_finalizing()

    @property
    def ready(self) -> bool:
        """Whether there is something to read, the end included."""
        return self.over or not self._items.empty()

    @property
    def over(self) -> bool:
        return self._ended.is_set()

    # In the scheduler's.

    def want(
        self, wait: Wait, *, part: PassPart | None = None, bid: Bid | None = None, size: int = 0
    ) -> None:
        """Say what it waits for; see `Scheduler.wait`."""
        self.wants, self.part, self.bid = wait, part, bid
        self.size = size if part is None else len(part.tokens)
        self.done, self.failed = False, None

    def finish(self, *, rows: Rows | None = None, error: BaseException | None = None) -> None:
        """Let it go on, with rows or an error."""
        self.rows, self.failed, self.done = rows, error, True

    @property
    def long(self) -> bool:
        """Whether it wants a piece of its prompt."""
        return self.part is not None and self.size - self.part.outputs >= LONG

    def put(self, item: object) -> None:
        self._wanted = False
        self._items.put(item)
        if self._told is not None:
            self._told()

    @property
    def read(self) -> bool:
        """Whether there is room for another item."""
        waiting = self._items.qsize()
        return waiting < self._ahead or (self._wanted and not waiting)

    @property
    def idle(self) -> bool:
        """Whether it wants nothing before it is read."""
        return self.wants is Wait.READER and not self.read

    def end(self, error: BaseException | None) -> None:
        if isinstance(error, Cancelled):
            error.__traceback__ = None  # whose frames hold the engine
        self.error = error
        self._ended.set()
        self.put(_END)
