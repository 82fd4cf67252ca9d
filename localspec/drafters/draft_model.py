"""The draft model: a small language model that guesses what the target will say.

Of a long text it reads the first few tokens (attention sinks: Xiao et al. 2024, section 3) and the
latest ones, at the places right behind those: what it drafts depends on the latest text mostly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from localspec.decoding.sampling import Rows
from localspec.decoding.session import Session
from localspec.decoding.tree import ROOT
from localspec.drafters.excerpt import SINKS, Excerpt, left_out_of


class Cache(Protocol):
    """A model's KV cache, as a drafter needs it; `localspec.llama.context.Context` is one.

    Attributes:
        tokens: what the cache holds.
        capacity: tokens it can hold.
        max_draft: most tokens of a pass whose rows are wanted, the first one aside.
    """

    tokens: list[int]

    @property
    def capacity(self) -> int: ...

    @property
    def max_draft(self) -> int: ...

    @property
    def native_seconds(self) -> float: ...

    def extend(self, tokens: Sequence[int], outputs: int = 1) -> Rows:
        """Append tokens; logits after the last `outputs` of them, valid until the next pass."""
        ...

    def truncate(self, length: int) -> None:
        """Drop the tokens from `length` on; more than that where the memory is recurrent."""
        ...

    def checkpoint(self) -> None:
        """Make `truncate` to the present length, or beyond it, possible for any memory."""
        ...


@runtime_checkable
class BranchingCache(Cache, Protocol):
    """A cache behind whose tokens a tree can grow, of up to so many branches."""

    @property
    def max_leaves(self) -> int: ...

    def grow(
        self, tokens: Sequence[int], parents: Sequence[int], pending: Sequence[int] = ()
    ) -> Rows:
        """Decode nodes of a tree that grows behind `tokens`, in one pass.

        Args:
            parents: the node that each hangs from, or ROOT; nodes are numbered over all calls.
            pending: tokens that join `tokens` first, in the same pass; only while there are no
                nodes.

        Returns:
            Rows after each new node; with `pending`, one after the last of those before them.
        """
        ...

    def settle(self, path: Sequence[int] = ()) -> None:
        """End the tree: the nodes of a path join `tokens`, the others are dropped."""
        ...


class DraftModel:
    """A cache that is kept in step with a session, shared by the sources that use the model.

    What the target accepted of a draft is never decoded again.

    Attributes:
        reads_along: whether it can read tokens in one pass that it did not propose itself.
    """

    reads_along = True
    WINDOW = 256
    """Where more of a text is unread, so many of the latest tokens are read. SmolLM2-135M behind
    prompts of 450 to 770 tokens is right in 0.79 of the places with all of them, 0.77 with 512,
    0.72 with 256, 0.73 with 128; 512 more take as long to read as a hundred to draft."""
    LONGEST = 2048
    """Tokens that it holds at most: a pass behind them takes two to three times as long as behind
    256."""

    def __init__(self, cache: Cache, vocabulary: int, *, window: int | None = WINDOW) -> None:
        """Args:
        vocabulary: tokens of the *target*; rows are cut to ids that both models have.
        window: see WINDOW; None has it read everything.
        """
        self.cache = cache
        self._window = window
        self._left_out = 0
        self._branching = cache if isinstance(cache, BranchingCache) else None
        self._vocabulary = vocabulary
        self._agreed = 0
        self._grown: list[tuple[int, int]] = []  # parent and token of each node

    @property
    def suffix(self) -> str:
        """Behind the name of a source where its tokens come from this model in a special way."""
        return ""

    def draws(self, *, greedy: bool) -> bool:
        """Asked before an answer, a greedy one or not: whether its tokens may be drawn from the
        rows, or are chosen."""
        return True

    def begin(self, prompt: Sequence[int]) -> None:
        """Bring the cache up to a new prompt, all but its last token."""
        self._agreed = 0
        self._left_out = 0 if self._window is None else left_out_of(prompt, self.cache.tokens)
        self.sync(prompt)
        text = self.to_read(prompt)
        missing = text[len(self.cache.tokens) : -1]
        if missing and len(text) <= self.cache.capacity:
            self.cache.extend(missing, 0)
            self._agreed = len(self.cache.tokens)

    def reads(self, prompt: Sequence[int], known: int) -> int:
        """Tokens that `begin` reads of a prompt, if the cache has the first `known`."""
        missing = len(prompt) - 1 - known
        return max(0, missing if self._window is None else min(missing, SINKS + self._window - 1))

    def sync(
        self, context: Sequence[int], beyond: Sequence[int] = (), *, whole: bool = False
    ) -> None:
        """Drop what does not agree with the committed tokens, and the last of these, behind which a
        row is wanted.

        Args:
            beyond: tokens that are imagined to follow; the next `sync` looks at them again.
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
        """Let go of the whole text, between two drafts; it is read again when it is wanted."""
        self._grown.clear()
        self._left_out = 0
        self.cache.truncate(0)

    def text(self, context: Sequence[int]) -> Sequence[int]:
        """What it reads of a text: what the cache holds agrees with the beginning of that."""
        return Excerpt(context, self._left_out) if self._left_out else context

    def to_read(self, context: Sequence[int]) -> Sequence[int]:
        """The same where the text is to be read to its end now, which may leave out more of it."""
        if self._begins_anew(context):
            assert self._window is not None
            self.cache.truncate(min(len(self.cache.tokens), SINKS))
            self._left_out = len(context) - self._window - SINKS
            self._agreed = min(self._agreed, len(self.cache.tokens))
        return self.text(context)

    def length(self, context: Sequence[int]) -> int:
        """Tokens that it holds once it has read the text."""
        if self._begins_anew(context):
            assert self._window is not None
            return SINKS + self._window
        return len(context) - self._left_out

    def unread(self, session: Session) -> int:
        """Tokens to read before it can draft."""
        context, held = session.context, len(self.cache.tokens)
        kept = min(held, SINKS) if self._begins_anew(context) else held
        return self.length(context) - kept

    def _begins_anew(self, context: Sequence[int]) -> bool:
        """Whether too much is unread, or held, to go on from what is held."""
        window, length = self._window, len(context) - self._left_out
        if window is None or length <= window + SINKS:
            return False
        return length - len(self.cache.tokens) > window or length > self.LONGEST

    def room(self, context: Sequence[int]) -> int:
        """Tokens that fit behind `context`."""
        return self.cache.capacity - len(context) + self._left_out

    def read(self, tokens: Sequence[int], outputs: int = 1) -> Rows:
        """Logits after the last `outputs` of the tokens, which join the cache."""
        rows = self.cache.extend(tokens, outputs)
        return rows if rows.shape[1] == self._vocabulary else self._cut(rows)

    def grow(
        self, tokens: Sequence[int], parents: Sequence[int], pending: Sequence[int] = ()
    ) -> Rows:
        """As `BranchingCache.grow`."""
        assert self._branching is not None, "it has a single branch"
        rows = self._branching.grow(tokens, parents, pending)
        self._grown += zip(parents, tokens, strict=True)
        return self._cut(rows)

    @property
    def branches(self) -> int:
        """Most branches of a tree; 1 where it can only be a chain."""
        return 1 if self._branching is None else self._branching.max_leaves

    @property
    def grown(self) -> int:
        """Nodes of the tree so far."""
        return len(self._grown)

    def _settle(self, context: Sequence[int]) -> None:
        """Keep the branch of the tree that was committed."""
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
        lacking = self._vocabulary - rows.shape[1]
        if lacking > 0:
            return np.pad(rows, ((0, 0), (0, lacking)), constant_values=-np.inf)
        return rows[:, : self._vocabulary] if lacking else rows
