"""A task of the scheduler: the generation of an answer, or passes over a given text."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from localspec.decoding.sampling import Rows
from localspec.errors import Cancelled, LocalspecError, UsageError
from localspec.llama.batch import PassPart
from localspec.policy.worth import Bid

if TYPE_CHECKING:
    from greenlet import greenlet


AHEAD = 2  # items that may wait for the reader before the task pauses
_WAIT = 0.2  # seconds between waits, in which Python handles signals
LONG = 16  # a part of a pass with this many tokens without a row is a prompt chunk


class Wait(Enum):
    """What a task waits for."""

    DRAFT = 0  # a pass of the draft model; served first, as one of the target follows
    TARGET = 1
    BID = 2  # the number of its candidates to verify
    ROOM = 3  # cells of the target's cache
    READER = 4  # room for another item


class Preempted(LocalspecError):
    """An older task took this one's cells, so that its text has to be prefilled again."""


_END = object()
CLOSED = "The engine is closed. Load the model again."
NOT_HERE = (
    "A forked process cannot continue an answer, nor can Python while it exits. Load the model in "
    "the process that uses it."
)


@dataclass(eq=False)
class Task:
    """Work on a slot, in a greenlet of the scheduler's thread, so that it can wait anywhere. Its
    items are read in other threads.

    The arguments are those of `Scheduler.submit`. With `ahead` 0 each item is produced on request.

    Attributes:
        slot: a `localspec.scheduling.scheduler.Slot`; None until the task begins.
        waits_for: None while it runs; `since`: when it began to wait.
        size: tokens of the request: of the part, of the needed room, or before the bid.
        done: whether the request is finished, with an error if `failed` is set.
        rows: of its latest pass, valid until its next request.
        share: its share of the seconds of that pass.
        granted: the result of its latest bid: a count of candidates, and seconds of each.
        lost: seconds spent waiting, less its share of passes.
        waited: seconds between request and rows, by `Wait.DRAFT` and `Wait.TARGET`.
        alone: whether no other task took part in its latest pass, or waited for one.
        reading: whether it is reading its prompt.
        error: the one that ended it; None if `work` returned.
    """

    tokens: Sequence[int]
    work: Callable[[Task], object]
    may_wait: bool = True
    owner: Hashable = None
    ahead: int = AHEAD
    wake: Callable[[], None] = lambda: None
    on_item: Callable[[], object] | None = None
    slot: Any = None
    greenlet: greenlet | None = None
    waits_for: Wait | None = None
    part: PassPart | None = None
    bid: Bid | None = None
    size: int = 0
    done: bool = False
    cancelled: bool = False
    failed: BaseException | None = None
    rows: Rows | None = None
    share: float = 0.0
    granted: tuple[int, float] = 0, 0.0
    lost: float = 0.0
    since: float = 0.0
    waited: dict[Wait, float] = field(default_factory=lambda: {Wait.DRAFT: 0.0, Wait.TARGET: 0.0})
    alone: bool = True
    reading: bool = True
    error: BaseException | None = None
    _items: SimpleQueue[Any] = field(default_factory=SimpleQueue)
    _wanted: bool = False
    _ended: threading.Event = field(default_factory=threading.Event)
    _process: int = field(default_factory=os.getpid)

    # In the reader's thread.

    def items(self) -> Iterator[Any]:
        """Yield its items until it ends. Raises the error that ended it, Cancelled included."""
        while True:
            if self.orphaned and not self.ready:
                raise UsageError(NOT_HERE)
            if not self.ahead and self._items.empty():
                self._wanted = True
                self._wake_if_waiting()
            while True:  # a signal may arrive just before a wait, or in another thread
                with suppress(Empty):
                    item = self._items.get(timeout=_WAIT)
                    break
            if item is _END:
                break
            if self.ahead:
                self._wake_if_waiting()
            yield item
        if self.error is not None:
            raise self.error

    def _wake_if_waiting(self) -> None:
        if self.waits_for is Wait.READER:
            self.wake()

    def wait(self, seconds: float | None = None) -> None:
        """Wait until it has ended, or for at most `seconds`."""
        if not self.orphaned:
            self._ended.wait(seconds)

    @property
    def orphaned(self) -> bool:
        """Whether the thread that runs it is missing: after a fork, and while Python ends."""
        return self._process != os.getpid() or sys.is_finalizing()

    @property
    def ready(self) -> bool:
        """Whether an item, or the end, can be read without waiting."""
        return self.over or not self._items.empty()

    @property
    def over(self) -> bool:
        return self._ended.is_set()

    # In the scheduler's thread.

    def request(
        self, wait: Wait, *, part: PassPart | None = None, bid: Bid | None = None, size: int = 0
    ) -> None:
        """Set what it waits for; see `Scheduler.wait`."""
        self.waits_for, self.part, self.bid = wait, part, bid
        self.size = size if part is None else len(part.tokens)
        self.done, self.failed = False, None

    def finish(self, *, rows: Rows | None = None, error: BaseException | None = None) -> None:
        self.rows, self.failed, self.done = rows, error, True

    @property
    def long(self) -> bool:
        """Whether its part is a chunk of its prompt."""
        return self.part is not None and self.size - self.part.outputs >= LONG

    def put(self, item: object) -> None:
        self._wanted = False
        self._items.put(item)
        if self.on_item is not None:
            self.on_item()

    @property
    def read(self) -> bool:
        """Whether there is room for another item."""
        waiting = self._items.qsize()
        return waiting < self.ahead or (self._wanted and not waiting)

    @property
    def idle(self) -> bool:
        """Whether it waits for its reader."""
        return self.waits_for is Wait.READER and not self.read

    def end(self, error: BaseException | None) -> None:
        if isinstance(error, Cancelled):
            error.__traceback__ = None  # whose frames hold the engine
        self.error = error
        self._ended.set()
        self.put(_END)
