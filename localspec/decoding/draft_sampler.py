"""Sampling draft tokens from rows of a draft model, under the constraints of the answer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from localspec.decoding.distribution import Distribution, Probabilities
from localspec.decoding.occurrences import NONE, Occurrences
from localspec.decoding.sampling import Constraint, Row, top_few
from localspec.decoding.session import Session


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
        """Up to `width` distinct tokens with the q each was drawn from, None if (or as if)
        chosen."""
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
        if not self.coupled:
            return DraftLogits(row, self, most)
        q = self.distribution(row)
        return CoupledLogits(q, self._session.race(q, len(self._path)), most)

    def _recent(self) -> Occurrences:
        return self._session.recent(self._path) if self._sampler.adjusts else NONE


class DraftLogits:
    """The most probable tokens of a row, before one is drawn.

    Attributes:
        tokens: the most probable allowed tokens, best first.
        probs: their probabilities at temperature 1, before any truncation.
        entropy: of the row, in nats.
    """

    NEAR = 12.0  # nats below the best logit; the rest of a row is negligible

    __slots__ = ("_near", "_weights", "_whole", "entropy", "probs", "tokens")

    def __init__(self, row: Row, sampler: DraftSampler, most: int) -> None:
        best = int(row.argmax())
        # Negated, so that all count as near if the row is NaN, or -inf everywhere.
        near = np.logical_not(row < row[best] - self.NEAR).nonzero()[0]
        shifted = row[near] - row[best]
        weights = np.exp(shifted)
        whole = float(np.add.reduce(weights))
        self._near, self._weights, self._whole = near, weights, whole
        self.entropy = math.log(whole) - float(np.dot(weights, shifted)) / whole
        if sampler.raw:
            places = top_few(shifted, most, int(near.searchsorted(best)))
            self.tokens: list[int] = near[places].tolist()
        else:
            self.tokens = sampler.top(row, most)
        self.probs = [self.prob(token) for token in self.tokens]

    def prob(self, token: int) -> float:
        place = int(self._near.searchsorted(token))
        if place == len(self._near) or self._near[place] != token:
            return 0.0
        return float(self._weights.item(place)) / self._whole


class CoupledLogits:
    """The same for a coupled row: the softmax of log q + g, with the target's noise g.

    Args:
        race: see `RandomSource.race`; proportional to −exp(log q + g).
    """

    __slots__ = ("_ids", "_weights", "entropy", "probs", "tokens")

    def __init__(self, q: Distribution, race: Probabilities, most: int) -> None:
        weights = race / np.add.reduce(race)
        order = race.argsort()[:most]
        self._ids, self._weights = q.ids, weights
        self.tokens: list[int] = q.ids[order].tolist()
        self.probs: list[float] = weights[order].tolist()
        some = weights[weights > 0.0]
        self.entropy = -float(np.dot(some, np.log(some)))

    def prob(self, token: int) -> float:
        return Distribution(self._ids, self._weights).prob(token)


RankedLogits: TypeAlias = DraftLogits | CoupledLogits
