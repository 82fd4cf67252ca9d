"""Copying what followed earlier occurrences of the text's longest suffix.

Prompt lookup (Saxena 2023) and REST (He et al. 2023, section 3), for suffixes of any length; the
most frequent continuation first."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from localspec.decoding.sampling import Rows
from localspec.decoding.session import Session
from localspec.decoding.sources import LookupSource, Prediction
from localspec.policy.acceptance_estimator import logit
from localspec.retrieval.known_texts import LONGEST, KnownTexts


class Position:
    """A position after the text and hypothetical tokens. `known`: the predictions computed so far,
    of which the first `passed` are consumed."""

    __slots__ = ("_further", "_source", "_tail", "known", "passed")

    def __init__(self, source: CopyingSource, tail: Sequence[int], streak: int) -> None:
        self._source, self._tail, self.passed = source, tail, 0
        self.known: list[Prediction] = []
        self._further = source.predictions(tail, streak)

    @property
    def ending(self) -> list[int]:
        """The tokens before the position, at least the latest LONGEST."""
        return [*self._tail, *(each.token for each in self.known[: self.passed])]

    def ahead(self) -> Iterator[Prediction]:
        n, known = self.passed, self.known
        while True:
            if n == len(known):
                found = next(self._further, None)
                if found is None:
                    return
                known.append(found)
            yield known[n]
            n += 1

    def advance(self, token: int) -> Position:
        first = next(self.ahead(), None)
        if first is not None and first.token == token:
            after = Position.__new__(Position)
            after._source, after._further = self._source, self._further
            after._tail, after.known, after.passed = self._tail, self.known, self.passed + 1
            return after
        return Position(self._source, [*self.ending, token], 0)


class CopyingSource(LookupSource):
    """Copies from `texts`. Its tokens are chosen: q is 1, and a token is accepted with probability
    p. `size`: of the vocabulary; higher ids are not proposed."""

    texts: KnownTexts
    size: float = math.inf
    _position: Position | None = None  # at the end of the committed text, while that is unchanged
    _position_length = 0  # length of that text, in tokens
    _streak = 0  # consecutive predicted tokens at its end

    def begin(self, prompt: Sequence[int]) -> None:
        self._streak, self._position = 0, None

    def committed(self, context: Sequence[int], hidden: Mapping[int, Rows]) -> None:
        position, self._position = self._position, None
        if position is None:
            return
        new = context[self._position_length :]
        for prediction, token in zip(position.known, new, strict=False):
            if prediction.token != token:
                self._streak = 0
                break
            self._streak += 1

    def position(self, session: Session) -> Position:
        held = len(session.context)
        if self._position is None or self._position_length != held:
            self._position = self.position_after(session.context, self._streak)
            self._position_length = held
        return self._position

    def position_after(self, context: Sequence[int], streak: int) -> Position:
        """The position at the end of the committed text."""
        return Position(self, context[-LONGEST:], streak)

    def advance(self, position: Position, token: int) -> Position:
        return position.advance(token)

    def predict(self, position: Position) -> Iterator[Prediction]:
        return position.ahead()

    def predictions(self, tail: Sequence[int], streak: int) -> Iterator[Prediction]:
        """Yield predictions after these tokens, of which the last `streak` were predicted."""
        tail, held = list(tail), -1
        while len(tail) > held:  # where a text ends, a shorter suffix may continue
            held = len(tail)
            for suffix in self.texts.longest(tail):
                for token, length, count, total in suffix.chain():
                    if token >= self.size:
                        return
                    features = self.features(length, count, total, min(streak, 31))
                    yield Prediction(token, features, _WEIGHT[length])
                    tail.append(token)
                    streak += 1
                if len(tail) > held:
                    break

    def features(self, length: int, count: int, total: int, streak: int) -> tuple[float, ...]:
        """Features of a token that followed a suffix of `length` tokens `count` times of `total`,
        after `streak` correct predictions."""
        return features_of(length, count, total, streak)

    def alternatives(self, position: Position, most: int) -> list[tuple[int, float]]:
        found: dict[int, float] = {}
        for suffix in self.texts.longest(position.ending):
            for token, count in suffix.followers().items():
                if len(found) == most:
                    break
                if token < self.size:
                    found.setdefault(token, min(0.5, count / (max(2, suffix.total) + 1)))
        return list(found.items())


@lru_cache(4096)
def features_of(
    length: int, count: int, total: int, streak: int
) -> tuple[float, float, float, float]:
    return 1.0, _LOG2[length], logit(count / (total + 1)), _LOG2[streak + 1]


_LOG2 = [0.0, *(min(5.0, math.log2(n)) for n in range(1, 33))]
_WEIGHT = [min(float(length.bit_length()), 4.0) for length in range(LONGEST + 1)]
"""By the length of a match: after a single repeated token no prediction is firm."""
