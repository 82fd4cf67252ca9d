"""One source by its name, drafting as a plan's shape says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple, Protocol, runtime_checkable

from localspec.decoding.interfaces import Draft, Limits, Plan, Source
from localspec.decoding.sampling import Rows
from localspec.decoding.session import Session
from localspec.decoding.tree import TokenTree
from localspec.drafters.window_shape import WindowShape


@runtime_checkable
class WindowSource(Source, Protocol):
    """A source that learns from the target's rows behind tokens that nobody proposes.

    It puts them into the tree that is verified as padding: the rule looks at them as at any others,
    and they count as nothing.
    """

    def open_window(self, session: Session, tree: TokenTree, columns: int, levels: int) -> None:
        """Add up to columns · levels tokens of padding, in at most so many branches as columns,
        behind all that is proposed; tokens that are in the tree are not added again."""
        ...

    def verified(self, rows: Rows) -> None:
        """Read the rows of a pass, whether or not its tree had a window; valid during the call."""
        ...


class Window(NamedTuple):
    """The window of a source that has one.

    Attributes:
        shape: its size, beside the largest draft that is made.
        limits: of the target.
    """

    source: WindowSource
    shape: WindowShape
    limits: Limits

    def open(self, session: Session, tree: TokenTree) -> None:
        """Add it to a draft, where there is room."""
        room = min(self.limits.max_draft, self.limits.capacity - len(session.context)) - len(tree)
        if room >= self.shape.rows:
            self.source.open_window(session, tree, *self.shape)


class NamedDrafter:
    """Has one source propose; implements `localspec.decoding.interfaces.Drafter`."""

    def __init__(self, source: Source, window: Window | None = None) -> None:
        self._source = source
        self._nothing = f"drafter '{source.name}' had nothing to propose"
        self._window = window
        self.hidden = source.hidden
        self.reads = window is not None

    @property
    def native_seconds(self) -> float:
        return self._source.native_seconds

    def begin(self, prompt: Sequence[int]) -> None:
        self._source.begin(prompt)

    def draft(self, session: Session, plan: Plan) -> Draft:
        tree = TokenTree()
        self._source.propose(session, plan, tree)
        if self._window is not None:
            self._window.open(session, tree)
        return Draft(tree, self._nothing)

    def verifying(
        self, session: Session, plan: Plan, draft: Draft
    ) -> AbstractContextManager[object]:
        return nullcontext()

    def verified(self, rows: Rows) -> None:
        if self._window is not None:
            self._window.source.verified(rows)

    def committed(self, context: Sequence[int], hidden: Mapping[int, Rows]) -> None:
        self._source.committed(context, hidden)


class Undrafted:
    """The drafter of plain decoding, which is never asked."""

    hidden: tuple[int, ...] = ()
    reads = False
    native_seconds = 0.0

    def begin(self, prompt: Sequence[int]) -> None:
        """Nothing to catch up with."""

    def draft(self, session: Session, plan: Plan) -> Draft:
        return Draft(TokenTree(), plan.reason)

    def verifying(
        self, session: Session, plan: Plan, draft: Draft
    ) -> AbstractContextManager[object]:
        return nullcontext()

    def verified(self, rows: Rows) -> None:
        """Nothing to read."""

    def committed(self, context: Sequence[int], hidden: Mapping[int, Rows]) -> None:
        """Nothing to keep."""
