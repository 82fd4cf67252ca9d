"""One source by its name, drafting as a plan's shape says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

from localspec.decoding.interfaces import Draft, Plan, Source
from localspec.decoding.sampling import Rows
from localspec.decoding.session import Session
from localspec.decoding.tree import TokenTree


class NamedDrafter:
    """Has one source propose; implements `localspec.decoding.interfaces.Drafter`."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._nothing = f"drafter '{source.name}' had nothing to propose"
        self.hidden = source.hidden

    @property
    def native_seconds(self) -> float:
        return self._source.native_seconds

    def begin(self, prompt: Sequence[int]) -> None:
        self._source.begin(prompt)

    def draft(self, session: Session, plan: Plan) -> Draft:
        tree = TokenTree()
        self._source.propose(session, plan, tree)
        return Draft(tree, self._nothing)

    def verifying(
        self, session: Session, plan: Plan, draft: Draft
    ) -> AbstractContextManager[object]:
        return nullcontext()

    def committed(self, context: Sequence[int], hidden: Mapping[int, Rows]) -> None:
        self._source.committed(context, hidden)


class Undrafted:
    """The drafter of plain decoding, which is never asked."""

    hidden: tuple[int, ...] = ()
    native_seconds = 0.0

    def begin(self, prompt: Sequence[int]) -> None:
        """Nothing to catch up with."""

    def draft(self, session: Session, plan: Plan) -> Draft:
        return Draft(TokenTree(), plan.reason)

    def verifying(
        self, session: Session, plan: Plan, draft: Draft
    ) -> AbstractContextManager[object]:
        return nullcontext()

    def committed(self, context: Sequence[int], hidden: Mapping[int, Rows]) -> None:
        """Nothing to keep."""
