"""The draft model as a source: chains drawn from it, trees of its choices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager

from localspec.decoding.sampling import Rows
from localspec.decoding.session import Session
from localspec.decoding.sources import Drafted, DraftPasses, ModelSource
from localspec.decoding.tree import TokenTree
from localspec.drafters.draft_model import Cache, DraftModel
from localspec.drafters.draft_passes import ChainPasses, TreePasses
from localspec.drafters.parallel import ParallelReader

PRIORS = {
    "greedy": (0.16, 1.43, 0.51, 0.45),
    "sampled": (1.1, 0.6, 0.0, 0.1),
    "coupled": (0.66, 0.95, -0.05, 0.13),
    "chosen": (-0.36, 1.15, 0.32, 0.17),
    "second": (1.1, 1.0, 2.4),
    "second coupled": (-0.26, 0.38, -0.08),
}
"""Where a pair begins. Features: see `localspec.policy.growing`.

Fitted: greedy and chosen to the embedded pair and SmolLM2 (Q4_0 drafted by Q4_1), coupled ones to
the embedded pair at T = 0.8."""


class DraftModelSource(ModelSource):
    """A draft model.

    Args:
        model: the cache, shared.
        greedy: choose the most probable token even where the session samples. Sampled drafts are
            accepted with probability Σ min(p, q), greedy ones with p of their token.
        reader: reads on while the target verifies, where the two can run side by side.
    """

    priors = PRIORS

    def __init__(
        self,
        model: DraftModel,
        *,
        name: str = "model",
        greedy: bool = False,
        reader: ParallelReader | None = None,
    ) -> None:
        self.name, self.greedy = name, greedy
        self._model, self._reader = model, reader

    @property
    def native_seconds(self) -> float:
        hidden = 0.0 if self._reader is None else self._reader.native_seconds
        return self._model.cache.native_seconds - hidden

    @property
    def credit(self) -> str:
        return self.name + self._model.suffix

    @property
    def passes(self) -> Cache:
        return self._model.cache

    def begin(self, prompt: Sequence[int]) -> None:
        if self._reader is not None:
            self._reader.forget()
        self._model.begin(prompt)

    def committed(self, context: Sequence[int], hidden: Mapping[int, Rows]) -> None:
        known = self._reader is not None and self._reader.holds(context)
        self._model.sync(context, whole=known)

    def kind(self, session: Session) -> str:
        if session.sampler.greedy:
            return "greedy"
        if self.greedy:
            return "chosen"
        return "coupled" if session.coupled else "sampled"

    def reads(self, prompt: Sequence[int], known: int) -> int:
        return self._model.reads(prompt, known)

    def unread(self, session: Session) -> int:
        return self._model.unread(session)

    def held(self, session: Session) -> int:
        return self._model.length(session.context)

    def room(self, session: Session) -> int:
        return self._model.room(session.context)

    def branches(self, session: Session) -> int:
        # A reader goes on from a chain.
        return 1 if self._reader is not None else self._model.branches

    def start(self, draft: Drafted) -> DraftPasses:
        if draft.branching and self.branches(draft.session) > 1:
            return TreePasses(self._model)
        ahead = None if self._reader is None else self._reader.take(draft.session.context)
        return ChainPasses(self._model, ahead)

    @contextmanager
    def _reading(self, session: Session, tree: TokenTree) -> Iterator[None]:
        assert self._reader is not None, "the plan overlaps what cannot run side by side"
        self._reader.start(session.context, tree.path_tokens(tree.tip()))
        try:
            yield
        finally:
            self._reader.stop()

    def verifying(self, session: Session, tree: TokenTree) -> AbstractContextManager[object]:
        """Read on as if the tree's main branch were accepted."""
        return self._reading(session, tree)
