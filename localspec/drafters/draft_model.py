"""The draft model as a source: chains drawn from it, trees of its choices.

Of a long text it reads the first few tokens (attention sinks: Xiao et al. 2024, section 3) and the
latest ones, at consecutive positions."""

from collections.abc import Mapping, Sequence

import numpy as np

from localspec.decoding.sampling import Row, Rows
from localspec.decoding.session import Session
from localspec.decoding.sources import Cache, DraftContext, ModelSource

SINKS = 4
"""Tokens kept at the beginning."""
_NEEDLE = 16
"""Number of tokens that identify a position in a text."""

PRIORS = {
    "greedy": (0.16, 1.43, 0.51, 0.45),
    "sampled": (1.1, 0.6, 0.0, 0.1),
    "coupled": (0.66, 0.95, -0.05, 0.13),
    "chosen": (-0.36, 1.15, 0.32, 0.17),
    "second": (1.1, 1.0, 2.4),
    "second coupled": (-0.26, 0.38, -0.08),
}
"""Initial weights for a new pair. Features: see `localspec.policy.draft_builder`.

Fitted: greedy and chosen to the built-in pair and SmolLM2 (Q4_0 drafted by Q4_1), coupled ones to
the built-in pair at T = 0.8."""


class DraftModel(ModelSource):
    """A draft model whose cache follows a session; accepted drafts are not decoded again.
    `vocabulary`: size of the *target's*; rows are cut or padded to it. `window`: see WINDOW; None
    reads everything.

    Attributes:
        greedy: for the current answer. Greedy drafts are accepted with probability p of their
            token, sampled ones with Σ min(p, q).
        reads_along: whether a pass can include predicted tokens of other sources.
    """

    name = "model"
    greedy = False
    priors: Mapping[str, tuple[float, ...]] = PRIORS
    reads_along = True
    WINDOW, NARROW = 1024, 256
    """If more than WINDOW tokens are unread, only the latest are read. They may fill half
    of a small cache, or NARROW tokens."""
    LONGEST, ROOM = 2048, 2048 + 128
    """Maximum cached tokens, as passes slow down with more; the same including drafts."""

    def __init__(self, cache: Cache, vocabulary: int, *, window: int | None = WINDOW) -> None:
        self.cache = cache
        self._window = window and min(window, max(self.NARROW, cache.capacity // 2))
        self._left_out = 0
        self.vocabulary = vocabulary
        self._agreed = 0
        self._rows: Rows | None = None  # after `_at`, then after each of the predicted tokens
        self._predicted: list[int] = []
        self._at: list[int] = []  # path before the first row
        self._read = -1  # cached tokens after it; -1 if predicted tokens were read as well

    @property
    def native_seconds(self) -> float:
        return self.cache.native_seconds

    def draws(self, *, greedy: bool) -> bool:
        """Whether its tokens can be drawn rather than chosen; called before an answer."""
        return True

    def kind(self, session: Session) -> str:
        if session.sampler.greedy:
            return "greedy"
        if self.greedy:
            return "chosen"
        return "coupled" if session.coupled else "sampled"

    # Synchronisation with the text.

    def begin(self, prompt: Sequence[int]) -> None:
        self._agreed = 0
        self._left_out = 0 if self._window is None else _count_left_out(prompt, self.cache.tokens)
        self.sync(prompt)
        text = self.to_read(prompt)
        missing = text[len(self.cache.tokens) : -1]
        if missing and len(text) <= self.cache.capacity:
            self.cache.extend(missing, 0)
            self._agreed = len(self.cache.tokens)

    def committed(self, context: Sequence[int], hidden: Mapping[int, Rows]) -> None:
        self.sync(context)

    def reads(self, prompt: Sequence[int], known: int) -> int:
        missing = len(prompt) - 1 - known
        return max(0, missing if self._window is None else min(missing, SINKS + self._window - 1))

    def sync(self, context: Sequence[int]) -> None:
        """Drop cached tokens that differ from the committed ones, and the last committed one."""
        self.drop_drafted()
        context = _excerpt(context, self._left_out)
        held = self.cache.tokens
        most = min(len(held), len(context) - 1)
        agreed = min(self._agreed, most)
        while agreed < most and held[agreed] == context[agreed]:
            agreed += 1
        self.cache.truncate(agreed)
        self._agreed = len(self.cache.tokens)

    def drop_drafted(self) -> None:
        """Drop what was computed for the last draft only; `sync` and `forget` call it first."""

    def forget(self) -> None:
        """Drop the whole text, between two drafts."""
        self.drop_drafted()
        self._left_out = 0
        self.cache.clear()

    def to_read(self, context: Sequence[int]) -> Sequence[int]:
        """The part of a text that it reads. Call it before reading, as it may leave out more."""
        if self._restarts(context):
            assert self._window is not None
            self.cache.truncate(min(len(self.cache.tokens), SINKS))
            self._left_out = len(context) - self._window - SINKS
            self._agreed = min(self._agreed, len(self.cache.tokens))
        return _excerpt(context, self._left_out)

    def held(self, context: Sequence[int]) -> int:
        if self._restarts(context):
            assert self._window is not None
            return SINKS + self._window
        return len(context) - self._left_out

    def unread(self, context: Sequence[int]) -> int:
        held = len(self.cache.tokens)
        kept = min(held, SINKS) if self._restarts(context) else held
        return self.held(context) - kept

    def _restarts(self, context: Sequence[int]) -> bool:
        window, length = self._window, len(context) - self._left_out
        if window is None or length <= window + SINKS:
            return False
        most = min(self.LONGEST, self.cache.capacity - 1)
        return length - len(self.cache.tokens) > window or length > most

    def room(self, context: Sequence[int]) -> int:
        return self.cache.capacity - self.held(context)

    def extend(self, tokens: Sequence[int], outputs: int = 1) -> Rows:
        rows = self.cache.extend(tokens, outputs)
        return rows if rows.shape[1] == self.vocabulary else self._cut(rows)

    def _cut(self, rows: Rows) -> Rows:
        lacking = self.vocabulary - rows.shape[1]
        if lacking > 0:
            return np.pad(rows, ((0, 0), (0, lacking)), constant_values=-np.inf)
        return rows[:, : self.vocabulary] if lacking else rows

    # Passes over a draft of one branch, which is appended to the cache and truncated again.

    def start(self, draft: DraftContext) -> None:
        self._rows, self._predicted, self._at, self._read = None, [], [], -1

    def knows(self, path: list[int]) -> bool:
        rows, predicted = self._rows, self._predicted
        if rows is not None and predicted and path == [*self._at, predicted[0]]:
            self._rows, self._predicted, self._at = rows[1:], predicted[1:], path
        return rows is not None and path == self._at

    def read(self, draft: DraftContext, path: list[int]) -> int:
        cache = self.cache
        if self._read == len(cache.tokens) and path[:-1] == self._at:
            unread = path[-1:]
        else:
            context = self.to_read(draft.session.context)
            cache.truncate(min(len(cache.tokens), len(context) + len(path) - 1))
            held = len(cache.tokens)
            unread = [*context[held:], *path[max(0, held - len(context)) :]]
        size = len(unread)
        predicted = draft.predicted_tokens(size) if self.reads_along else []
        if predicted:
            predicted = predicted[: max(0, self.room(draft.session.context) - len(path))]
        self._rows = self.extend([*unread, *predicted], 1 + len(predicted))
        self._predicted, self._at = predicted, path
        if not predicted:
            cache.checkpoint()
        self._read = -1 if predicted else len(cache.tokens)
        return size + len(predicted)

    def row(self, path: list[int]) -> Row:
        assert self._rows is not None
        row: Row = self._rows[0]
        return row


def _excerpt(text: Sequence[int], left_out: int) -> Sequence[int]:
    """The first SINKS tokens of a text, and those after the next `left_out`."""
    return [*text[:SINKS], *text[SINKS + left_out :]] if left_out else text


def _count_left_out(text: Sequence[int], held: Sequence[int]) -> int:
    """Number of tokens of a text that a cache left out; 0 if it holds the beginning, or too
    little."""
    needle = list(held[SINKS : SINKS + _NEEDLE])
    if not needle or list(held[:SINKS]) != list(text[:SINKS]):
        return 0
    rest = list(text[SINKS:])
    return next((n for n in range(len(rest)) if rest[n : n + len(needle)] == needle), 0)
