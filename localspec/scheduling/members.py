"""Who takes part in rounds, and what they ask for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from localspec.decoding.sampling import Rows
from localspec.errors import LocalspecError
from localspec.llama.shared_context import PassPart
from localspec.policy.worth import Bid

DRAFT, TARGET, BID = range(3)
"""The lanes: passes of the draft model come first, as they are on the way to one of the target. Who
waits in the last one wants no pass, but to know how much of its draft may be verified."""
LONG = 16
"""Tokens without a row, from which on a part is a piece of a prompt."""


class Lane(Protocol):
    """A cache whose passes are shared; `localspec.llama.shared_context.SharedContext` is one."""

    @property
    def batch(self) -> int: ...

    @property
    def rows(self) -> int: ...

    def decode(self, parts: Sequence[PassPart], padding: int = 0) -> list[Rows]: ...

    def undo(self, parts: Sequence[PassPart]) -> None: ...

    def cancel(self) -> None: ...

    def resume(self) -> None: ...


class Displaced(LocalspecError):
    """The cells of an answer were needed by an older one; it has to read its text again."""


class Member:
    """An answer that takes part.

    Attributes:
        waited: seconds between request and rows, by lane; those of others' work are among them.
        lost: of these, the seconds that were not for this answer.
        alone: whether its latest pass was for nobody else, and it waited for nobody.
        reading: whether it is at its prompt, and does not make steps.
        cells: tokens that it holds in the target's cache and does not share.
        displace: empties that cache.
    """

    def __init__(
        self, floor: threading.RLock, cells: Callable[[], int], clock: Callable[[], float]
    ) -> None:
        self._clock = clock
        self.turn = threading.Condition(floor)
        self.cells = cells
        self.displace: Callable[[], None] = lambda: None
        self.request: Request | None = None
        self.inside = self.cancelled = False
        self.late = True
        self.since = 0.0
        self.thread = 0
        self.waited = [0.0, 0.0]
        self.lost = 0.0
        self.alone = self.reading = True

    def clock(self) -> float:
        """Seconds, those that were for other answers left out."""
        return self._clock() - self.lost


class Request:
    """A part that a member waits for; without one it waits for room, or for what is granted to its
    bid behind so many tokens: a count of candidates, and seconds for each."""

    __slots__ = (
        "bid",
        "context",
        "done",
        "error",
        "granted",
        "lane",
        "member",
        "part",
        "rows",
        "share",
    )

    def __init__(
        self,
        member: Member,
        lane: int,
        part: PassPart | None,
        bid: Bid | None = None,
        context: int = 0,
    ) -> None:
        self.member = member
        self.lane = lane
        self.part = part
        self.done = False
        self.rows: Rows | None = None
        self.share = 0.0
        self.error: BaseException | None = None
        self.bid, self.context = bid, context
        self.granted = 0, 0.0

    @property
    def tokens(self) -> int:
        return 0 if self.part is None else len(self.part.tokens)

    @property
    def long(self) -> bool:
        """Whether it is a piece of a prompt."""
        return self.part is not None and self.tokens - self.part.outputs >= LONG
