"""Drafts what a grammar or a schema leaves no choice about: names of properties, constants."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from localspec.decoding.auto_sources import Prediction
from localspec.decoding.interfaces import Plan
from localspec.decoding.sampling import Rows
from localspec.decoding.session import Session
from localspec.decoding.tree import TokenTree

_WEIGHTS = (3.5, -2.0)
"""Of a token, and of the last one of a forced text, which what follows may be spelled with."""


class ForcedSource:
    """Follows the only text that may come, in the spelling that the vocabulary gives it.

    Implements `localspec.decoding.auto_sources.LookupSource`; a place is what has to follow there.
    llguidance calls it fast-forward; here the target says whether it spells the text that way.
    """

    priors: ClassVar[Mapping[str, tuple[float, ...]]] = {"greedy": _WEIGHTS, "sampled": _WEIGHTS}
    name = "grammar"
    hidden: tuple[int, ...] = ()
    native_seconds = 0.0

    def begin(self, prompt: Sequence[int]) -> None:
        """Nothing to catch up with."""

    def propose(self, session: Session, plan: Plan, tree: TokenTree) -> None:
        node = tree.tip()
        for token in self.place(session)[: plan.depth]:
            node = tree.add(token, node, self.name)

    def committed(self, context: Sequence[int], hidden: Mapping[int, Rows]) -> None:
        """Nothing to keep: the session's grammar is behind the context."""

    def kind(self, session: Session) -> str:
        return "greedy" if session.sampler.greedy else "sampled"

    def place(self, session: Session) -> Sequence[int]:
        return () if session.constraint is None else session.constraint.forced()

    def follow(self, place: Sequence[int], token: int) -> Sequence[int]:
        return place[1:] if place and place[0] == token else ()

    def expected(self, place: Sequence[int]) -> Iterator[Prediction]:
        for left, token in zip(range(len(place) - 1, -1, -1), place, strict=True):
            yield Prediction(token, (1.0, float(left == 0)), weight=4.0)

    def others(self, place: Sequence[int], most: int) -> list[tuple[int, float]]:
        return []
