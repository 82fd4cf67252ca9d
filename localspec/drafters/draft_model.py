"""The draft model as a source: chains drawn from it, trees of its choices.

Of a long text it reads the first few tokens (attention sinks: Xiao et al. 2024, section 3) and the
latest ones, at the positions right behind those."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np

from localspec.decoding.sampling import Rows
from localspec.decoding.session import Session
from localspec.decoding.sources import Drafted, DraftPasses, ModelSource
from localspec.decoding.tree import ROOT, TokenTree
from localspec.drafters.draft_cache import BranchingCache, Cache
from localspec.drafters.draft_passes import ChainPasses, TreePasses
from localspec.drafters.excerpt import SINKS, Excerpt, left_out_of
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


class DraftModel(ModelSource):
    """A draft model, whose cache is kept in step with a session; accepted drafts are not decoded
    again.

    Attributes:
        greedy: in the present answer. Greedy drafts are accepted with probability p of their token,
            sampled ones with Σ min(p, q).
        reader: reads on while the target verifies, where the two can run side by side.
        reads_along: whether it can read expected tokens of others in the same pass.
    """

    name = "model"
    greedy = False
    priors: Mapping[str, tuple[float, ...]] = PRIORS
    reader: ParallelReader | None = None
    reads_along = True
    WINDOW = 256
    """Where more of a text is unread, so many of the latest tokens are read."""
    LONGEST = 2048
    """Tokens that it holds at most; passes behind more of them are slow."""

    def __init__(self, cache: Cache, vocabulary: int, *, window: int | None = WINDOW) -> None:
        """Args:
        vocabulary: tokens of the *target*; rows are cut or padded to it.
        window: see WINDOW; None has it read everything.
        """
        self.cache = cache
        self._window = window
        self._left_out = 0
        self._branching = cache if isinstance(cache, BranchingCache) else None
        self.vocabulary = vocabulary
        self._agreed = 0
        self._grown: list[tuple[int, int]] = []  # parent and token of each node

    @property
    def native_seconds(self) -> float:
        hidden = 0.0 if self.reader is None else self.reader.native_seconds
        return self.cache.native_seconds - hidden

    def draws(self, *, greedy: bool) -> bool:
        """Asked before an answer: whether its tokens may be drawn, or are chosen."""
        return True

    def kind(self, session: Session) -> str:
        if session.sampler.greedy:
            return "greedy"
        if self.greedy:
            return "chosen"
        return "coupled" if session.coupled else "sampled"

    @property
    def branches(self) -> int:
        if self.reader is not None or self._branching is None:  # the reader goes on from a chain
            return 1
        return self._branching.max_leaves

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

    # In step with the text.

    def begin(self, prompt: Sequence[int]) -> None:
        if self.reader is not None:
            self.reader.forget()
        self._agreed = 0
        self._left_out = 0 if self._window is None else left_out_of(prompt, self.cache.tokens)
        self.sync(prompt)
        text = self.to_read(prompt)
        missing = text[len(self.cache.tokens) : -1]
        if missing and len(text) <= self.cache.capacity:
            self.cache.extend(missing, 0)
            self._agreed = len(self.cache.tokens)

    def committed(self, context: Sequence[int], hidden: Mapping[int, Rows]) -> None:
        self.sync(context, whole=self.reader is not None and self.reader.holds(context))

    def reads(self, prompt: Sequence[int], known: int) -> int:
        missing = len(prompt) - 1 - known
        return max(0, missing if self._window is None else min(missing, SINKS + self._window - 1))

    def sync(
        self, context: Sequence[int], beyond: Sequence[int] = (), *, whole: bool = False
    ) -> None:
        """Drop what does not agree with the committed tokens, and the last of these, behind which a
        row is wanted.

        Args:
            beyond: tokens that are imagined to follow, until the next `sync`.
            whole: the row behind the last token is known.
        """
        if self._grown:
            self._settle(self.text(context))
        context = self.text(context)
        held, known = self.cache.tokens, len(context)
        most = min(len(held), known + len(beyond) - (0 if whole else 1))
        agreed = min(self._agreed, most)
        while agreed < most and held[agreed] == (
            context[agreed] if agreed < known else beyond[agreed - known]
        ):
            agreed += 1
        self.cache.truncate(agreed)
        self._agreed = min(known, len(self.cache.tokens))

    def forget(self) -> None:
        """Drop the whole text, between two drafts."""
        self._grown.clear()
        self._left_out = 0
        self.cache.truncate(0)

    def text(self, context: Sequence[int]) -> Sequence[int]:
        """What it reads of a text."""
        return Excerpt(context, self._left_out) if self._left_out else context

    def to_read(self, context: Sequence[int]) -> Sequence[int]:
        """The same before reading to the end of the text, which may leave out more of it."""
        if self._begins_anew(context):
            assert self._window is not None
            self.cache.truncate(min(len(self.cache.tokens), SINKS))
            self._left_out = len(context) - self._window - SINKS
            self._agreed = min(self._agreed, len(self.cache.tokens))
        return self.text(context)

    def held(self, context: Sequence[int]) -> int:
        if self._begins_anew(context):
            assert self._window is not None
            return SINKS + self._window
        return len(context) - self._left_out

    def unread(self, context: Sequence[int]) -> int:
        held = len(self.cache.tokens)
        kept = min(held, SINKS) if self._begins_anew(context) else held
        return self.held(context) - kept

    def _begins_anew(self, context: Sequence[int]) -> bool:
        window, length = self._window, len(context) - self._left_out
        if window is None or length <= window + SINKS:
            return False
        return length - len(self.cache.tokens) > window or length > self.LONGEST

    def room(self, context: Sequence[int]) -> int:
        return self.cache.capacity - len(context) + self._left_out

    def read(self, tokens: Sequence[int], outputs: int = 1) -> Rows:
        rows = self.cache.extend(tokens, outputs)
        return rows if rows.shape[1] == self.vocabulary else self._cut(rows)

    def grow(
        self, tokens: Sequence[int], parents: Sequence[int], pending: Sequence[int] = ()
    ) -> Rows:
        assert self._branching is not None, "it has a single branch"
        rows = self._branching.grow(tokens, parents, pending)
        self._grown += zip(parents, tokens, strict=True)
        return self._cut(rows)

    @property
    def grown(self) -> int:
        return len(self._grown)

    def _settle(self, context: Sequence[int]) -> None:
        path: list[int] = []
        parent, at = ROOT, len(self.cache.tokens)
        for node, (above, token) in enumerate(self._grown):
            # Children come behind their parents, and siblings differ.
            if above == parent and at < len(context) and token == context[at]:
                path.append(node)
                parent, at = node, at + 1
        self._grown.clear()
        assert self._branching is not None
        self._branching.settle(path)

    def _cut(self, rows: Rows) -> Rows:
        lacking = self.vocabulary - rows.shape[1]
        if lacking > 0:
            return np.pad(rows, ((0, 0), (0, lacking)), constant_values=-np.inf)
        return rows[:, : self.vocabulary] if lacking else rows
