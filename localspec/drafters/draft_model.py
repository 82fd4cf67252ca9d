"""The draft model as a source: chains drawn from it, trees of its choices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from localspec.decoding.sampling import Rows
from localspec.decoding.session import Session
from localspec.decoding.sources import Drafted, DraftPasses, ModelSource
from localspec.decoding.tree import TokenTree
from localspec.drafters.draft_cache import Cache, DraftCache
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


class DraftModel(DraftCache, ModelSource):
    """A draft model.

    Attributes:
        greedy: in the present answer. Greedy drafts are accepted with probability p of their token,
            sampled ones with Σ min(p, q).
        reader: reads on while the target verifies, where the two can run side by side.
    """

    name = "model"
    greedy = False
    priors: Mapping[str, tuple[float, ...]] = PRIORS
    reader: ParallelReader | None = None

    @property
    def native_seconds(self) -> float:
        hidden = 0.0 if self.reader is None else self.reader.native_seconds
        return self.cache.native_seconds - hidden

    @property
    def suffix(self) -> str:
        """Behind the name of a source in statistics."""
        return ""

    @property
    def credit(self) -> str:
        return self.name + self.suffix

    @property
    def passes(self) -> Cache:
        return self.cache

    def draws(self, *, greedy: bool) -> bool:
        """Asked before an answer: whether its tokens may be drawn, or are chosen."""
        return True

    def begin(self, prompt: Sequence[int]) -> None:
        if self.reader is not None:
            self.reader.forget()
        super().begin(prompt)

    def committed(self, context: Sequence[int], hidden: Mapping[int, Rows]) -> None:
        self.sync(context, whole=self.reader is not None and self.reader.holds(context))

    def kind(self, session: Session) -> str:
        if session.sampler.greedy:
            return "greedy"
        if self.greedy:
            return "chosen"
        return "coupled" if session.coupled else "sampled"

    @property
    def branches(self) -> int:
        return 1 if self.reader is not None else super().branches  # it goes on from a chain

    def start(self, draft: Drafted) -> DraftPasses:
        if draft.branching and self.branches > 1:
            return TreePasses(self)
        ahead = None if self.reader is None else self.reader.take(draft.session.context)
        return ChainPasses(self, ahead)

    @contextmanager
    def verifying(self, session: Session, tree: TokenTree) -> Iterator[None]:
        """Read on as if the tree's main branch were accepted."""
        assert self.reader is not None, "the plan overlaps what cannot run side by side"
        self.reader.start(session.context, tree.path_tokens(tree.tip()))
        try:
            yield
        finally:
            self.reader.stop()
