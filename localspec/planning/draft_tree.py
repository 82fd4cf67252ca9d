"""The draft tree of one step: what is worth verifying of all that the sources propose, see
`localspec.planning.draft_value`.

Greedy text gets a tree: the draft model's choices and what the lookup sources expect instead or
afterwards; the most probable of these are verified (EAGLE-2: Li et al. 2024, section 4). Sampled
text gets a chain, drawn from the draft model, that ends before a token is drawn which is not
expected to pay, and goes on with what is looked up. Where the draft model draws with the target's
noise (rule `match`), sampled text is greedy text of other logits, and gets a tree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager

from localspec.decoding.auto_sources import LookupSource, ModelSource, WindowSource
from localspec.decoding.interfaces import Draft, Plan
from localspec.decoding.sampling import Rows
from localspec.decoding.session import Session
from localspec.planning.growing_tree import GrowingTree
from localspec.planning.pair_profile import PairProfile
from localspec.planning.plan import AUTO, AdaptivePlan


class DraftTreeBuilder:
    """Makes trees of what all sources propose, as far as an `AdaptivePlan` lets them.

    Implements `localspec.decoding.interfaces.Drafter`.
    """

    name = AUTO

    def __init__(
        self,
        lookups: Sequence[LookupSource],
        models: Sequence[ModelSource],
        profile: PairProfile,
    ) -> None:
        self._lookups = lookups
        self._models = {source.name: source for source in models}
        self._sources = (*lookups, *models)
        self._profile = profile
        self._windows = [source for source in lookups if isinstance(source, WindowSource)]
        self.reads = bool(self._windows)
        self._readers = {s.name: profile.source(s).states for s in self._sources if s.hidden}

    @property
    def hidden(self) -> tuple[int, ...]:
        if not self._readers:
            return ()
        told = (s.hidden for s in self._sources if s.hidden and self._readers[s.name].told)
        return tuple(sorted({layer for layers in told for layer in layers}))

    @property
    def native_seconds(self) -> float:
        seconds = 0.0  # what is looked up takes none
        for source in self._models.values():
            seconds += source.native_seconds
        return seconds

    def begin(self, prompt: Sequence[int]) -> None:
        for source in self._sources:
            source.begin(prompt)

    def draft(self, session: Session, plan: Plan) -> Draft:
        assert isinstance(plan, AdaptivePlan), "only the adaptive planner asks this drafter"
        growing = GrowingTree(session, plan, self._lookups, self._profile)
        if plan.reviews is not None:
            growing.review(self._models[plan.reviews])
        if plan.asks is not None:
            growing.ask(self._models[plan.asks])
        else:
            growing.look_up()
        return growing.finished(self._windows)

    def verifying(
        self, session: Session, plan: Plan, draft: Draft
    ) -> AbstractContextManager[object]:
        assert isinstance(plan, AdaptivePlan)
        assert plan.asks is not None, "only a model source can go on while the target verifies"
        return self._models[plan.asks].verifying(session, draft.tree)

    def verified(self, rows: Rows) -> None:
        for source in self._windows:
            source.verified(rows)

    def committed(self, context: Sequence[int], hidden: Mapping[int, Rows]) -> None:
        readers = self._readers
        for source in self._sources:
            # What is told nothing was not asked either: there is nothing to drop.
            if not readers or hidden or source.name not in readers or readers[source.name].told:
                source.committed(context, hidden)
