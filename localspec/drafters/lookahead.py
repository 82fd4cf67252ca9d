"""Lookahead decoding: n-grams that the target makes in extra rows of its passes.

Fu et al. 2024. A window of guesses goes along with every pass as a tree: a trunk of guessed tokens,
and behind each a column of what the target said there in earlier passes (Jacobi iteration). The
rows behind the columns complete an n-gram each. Those that begin with the last token are proposed,
with q = 1."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from localspec.decoding.sampling import Rows
from localspec.decoding.session import Session
from localspec.decoding.sources import LookupSource, Prediction
from localspec.decoding.tree import ROOT, TokenTree

KEPT = 8
"""N-grams of one first token: the paper's G."""
FARTHEST = 16
"""Tokens of a chain of n-grams, which may run in a circle."""
_STRIDE = 7


class WindowPosition(NamedTuple):
    """The end of the text and what was imagined behind it.

    Attributes:
        token: its last token.
        rest: what is left of an n-gram that it is in the middle of.
    """

    token: int
    rest: tuple[int, ...] = ()


class LookaheadSource(LookupSource):
    name = "lookahead"
    priors: Mapping[str, tuple[float, ...]] = {"any": (0.0,)}

    def __init__(self) -> None:
        self._pool: dict[int, dict[tuple[int, ...], None]] = {}  # tails, the latest last
        self._levels: list[list[int]] = []  # the trunk first, a token for each column
        self._size = (0, 0)
        self._ends: list[int] = []  # of the columns, in the tree that is verified

    def begin(self, prompt: Sequence[int]) -> None:
        self._pool.clear()
        self._levels, self._ends = [], []

    # The window.

    def open_window(self, session: Session, tree: TokenTree, columns: int, levels: int) -> None:
        """Add up to columns · levels tokens of padding, in at most `columns` branches."""
        if self._size != (columns, levels):
            self._size, self._levels = (columns, levels), []
        # Guesses may run into one another, and into what the target says for ever.
        different = len(set(self._levels[0])) if self._levels else 0
        if different < columns:
            fresh = _guesses(session.context, columns)
            if 2 * different <= len(set(fresh)):
                self._levels = [fresh]
        node, ends = ROOT, []
        for token in self._levels[0]:
            node = _below(tree, node, token)
            ends.append(node)
        for level in self._levels[1:]:
            ends = [_below(tree, end, token) for end, token in zip(ends, level, strict=True)]
        self._ends = ends

    def verified(self, rows: Rows) -> None:
        """Read the rows of a pass, valid during the call; also without a window."""
        ends, self._ends = self._ends, []
        if not ends:
            return
        said = [int(rows[end + 1].argmax()) for end in ends]
        self._levels.append(said)
        if len(self._levels) <= self._size[1]:
            return  # it is still being filled
        for ngram in zip(*self._levels, strict=True):
            self._learn(ngram)
        del self._levels[0]

    def _learn(self, ngram: tuple[int, ...]) -> None:
        first, tail = ngram[0], ngram[1:]
        known = self._pool.setdefault(first, {})
        known.pop(tail, None)
        known[tail] = None
        if len(known) > KEPT:
            del known[next(iter(known))]

    # The pool.

    def position(self, session: Session) -> WindowPosition:
        return WindowPosition(session.context[-1])

    def advance(self, position: WindowPosition, token: int) -> WindowPosition:
        if position.rest and position.rest[0] == token:
            return WindowPosition(token, position.rest[1:])
        if not position.rest:
            for tail in reversed(self._pool.get(position.token, {})):
                if tail[0] == token:
                    return WindowPosition(token, tail[1:])
        return WindowPosition(token)

    def predict(self, position: WindowPosition) -> Iterator[Prediction]:
        token, rest = position.token, position.rest
        for _ in range(FARTHEST):
            if not rest:
                known = self._pool.get(token)
                if not known:
                    return
                rest = next(reversed(known))
            token, rest = rest[0], rest[1:]
            yield Prediction(token, (1.0,))

    def alternatives(self, position: WindowPosition, most: int) -> list[tuple[int, float]]:
        latest_first = reversed(self._pool.get(position.token, {}))
        return [(token, 0.5) for token in dict.fromkeys(tail[0] for tail in latest_first)][:most]


def _guesses(context: Sequence[int], count: int) -> list[int]:
    """So many tokens of a text, different ones as far as it has them; they improve from pass to
    pass."""
    near = context[: -1 - _STRIDE * count : -1]
    spread = [token for first in range(_STRIDE) for token in near[first::_STRIDE]]
    found = list(dict.fromkeys(spread))[:count]
    return [*found, *(found[i % len(found)] for i in range(count - len(found)))]


def _below(tree: TokenTree, parent: int, token: int) -> int:
    existing = tree.child_with(parent, token)
    return tree.pad(token, parent) if existing is None else existing
