"""Sampling draft tokens from rows of a draft model, under the constraints of the answer."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from localspec.decoding.distribution import Distribution
from localspec.decoding.occurrences import NONE, Occurrences
from localspec.decoding.sampling import Constraint, Row, top_few
from localspec.decoding.session import Session

NEAR = 12.0  # nats below the best logit; the rest of a row is negligible


class DraftSampler:
    """Draws draft tokens along one path, with the session's sampler, grammar and penalties.

    Args:
        greedy: choose the most probable token even where the session samples.

    Attributes:
        coupled: tokens are drawn with the target's noise, and count as chosen.
        open: False once the path has ended, or a grammar does not allow it.
        raw: whether the best token of a row is the arg-max of its unmodified logits.
    """

    def __init__(self, session: Session, path: Sequence[int], *, greedy: bool) -> None:
        self._session = session
        self._sampler = session.sampler
        self.greedy = greedy or session.sampler.greedy
        self.coupled = session.coupled and not self.greedy
        self.raw = session.constraint is None and not session.sampler.adjusts
        self._path: list[int] = []
        self.open = True
        self._constraint: Constraint | None = None
        if session.constraint is not None:
            self._constraint = session.constraint.fork()
        for token in path:
            self.advance(token)

    def advance(self, token: int) -> None:
        self._path.append(token)
        if self._session.ends(token):
            self.open = False
        elif self._constraint is not None and self.open:
            try:
                self._constraint.advance(token)
            except ValueError:
                self.open = False

    def fork(self, token: int) -> DraftSampler:
        further = DraftSampler.__new__(DraftSampler)
        further.__dict__.update(self.__dict__)  # `copy` is slower
        further._path = list(self._path)
        if self._constraint is not None:
            further._constraint = self._constraint.fork()
        further.advance(token)
        return further

    def best(self, row: Row) -> int:
        if self.raw:
            return int(row.argmax())
        return self._sampler.best(row, self._recent(), self._constraint)

    def top(self, row: Row, most: int) -> list[int]:
        """The `most` most probable tokens, best first; fewer if a grammar allows fewer."""
        if most == 1:
            return [self.best(row)]
        return self._sampler.top(row, self._recent(), most, self._constraint)

    def distribution(self, row: Row) -> Distribution:
        return self._sampler.distribution(row, self._recent(), self._constraint)

    def candidates(self, row: Row, width: int) -> list[tuple[int, Distribution | None]]:
        """Up to `width` distinct tokens, each with the q it was drawn from; None for chosen tokens,
        and for coupled ones."""
        if self.greedy:
            return [(token, None) for token in self.top(row, width)]
        q: Distribution | None = self.distribution(row)
        drawn: list[tuple[int, Distribution | None]] = []
        while q is not None and len(drawn) < width:
            token = self._session.propose(q, len(self._path))
            drawn.append((token, None if self.coupled else q))
            q = q.without(token)
        return drawn

    def ranked(self, row: Row, most: int) -> RankedLogits:
        """The `most` most probable tokens of a row, before one is drawn."""
        if self.coupled:
            return self._ranked_race(self.distribution(row), most)
        best = int(row.argmax())
        # Negated, so that all count as near if the row is NaN, or -inf everywhere.
        near = np.logical_not(row < row[best] - NEAR).nonzero()[0]
        shifted = row[near] - row[best]
        weights = np.exp(shifted)
        whole = float(np.add.reduce(weights))
        entropy = math.log(whole) - float(np.dot(weights, shifted)) / whole
        if self.raw:
            places = top_few(shifted, most, int(near.searchsorted(best)))
            tokens: list[int] = near[places].tolist()
        else:
            tokens = self.top(row, most)
        return RankedLogits(tokens, entropy, Distribution(near, weights), whole)

    def _ranked_race(self, q: Distribution, most: int) -> RankedLogits:
        """The same by the softmax of log q + g, with the noise g of the target's own draw."""
        race = self._session.race(q, len(self._path))  # proportional to −exp(log q + g)
        weights = race / np.add.reduce(race)
        some = weights[weights > 0.0]
        entropy = -float(np.dot(some, np.log(some)))
        tokens: list[int] = q.ids[race.argsort()[:most]].tolist()
        return RankedLogits(tokens, entropy, Distribution(q.ids, weights))

    def _recent(self) -> Occurrences:
        return self._session.recent(self._path) if self._sampler.adjusts else NONE


class RankedLogits:
    """The most probable tokens of a row.

    Args:
        near: all tokens that are not negligible, with weights whose sum is `whole`.

    Attributes:
        tokens: the most probable allowed tokens, best first.
        probs: their probabilities at temperature 1, before any truncation; if drafts are coupled,
            the probabilities of being drawn.
        entropy: of the row, in nats.
    """

    __slots__ = ("_near", "_whole", "entropy", "probs", "tokens")

    def __init__(
        self, tokens: list[int], entropy: float, near: Distribution, whole: float = 1.0
    ) -> None:
        self.tokens, self.entropy, self._near, self._whole = tokens, entropy, near, whole
        self.probs = [self.prob(token) for token in tokens]

    def prob(self, token: int) -> float:
        return self._near.prob(token) / self._whole
