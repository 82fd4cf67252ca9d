"""Prompt lookup (Saxena 2023), over a suffix automaton instead of n-grams of a fixed length."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Generic, TypeVar

from localspec.decoding.sampling import Rows
from localspec.decoding.session import Session
from localspec.decoding.sources import LookupSource, Prediction
from localspec.drafters.suffix_automaton import Match, SuffixAutomaton
from localspec.policy.acceptance_estimator import logit

_Item = TypeVar("_Item")

PRIORS = {
    "greedy": (-0.74, 0.36, 1.11, 0.59),
    "sampled": (-1.12, 0.48, 0.95, 0.3),
}
"""Fitted like those of `localspec.drafters.draft_model`. Features: see `features_of`."""
_LEAD = 8
"""Tokens at the end of a prompt that precede a predicted text."""


class NgramIndex:
    """A suffix automaton of the committed tokens, after an optional predicted text."""

    def __init__(self) -> None:
        self.automaton = SuffixAutomaton()
        self._expected: list[int] = []

    def expect(self, prompt: Sequence[int], prediction: Sequence[int]) -> None:
        """Set the predicted text after a prompt; an empty one removes it.

        The end of the prompt is put before it, so that it matches from the first token on."""
        expected = [*prompt[-_LEAD:], *prediction] if prediction else []
        if expected != self._expected:
            self._expected = expected
            self._restart()

    def sync(self, context: Sequence[int]) -> None:
        """Index the new tokens of a text that continues the indexed one."""
        self.automaton.extend(context[len(self.automaton.tokens) - len(self._expected) :])

    def begin(self, context: Sequence[int]) -> None:
        """Begin a generation: restart unless `context` continues the indexed text."""
        known = self.automaton.tokens[len(self._expected) :]
        if list(context[: len(known)]) != known:
            self._restart()
        self.sync(context)

    def _restart(self) -> None:
        self.automaton = SuffixAutomaton()
        self.automaton.extend(self._expected)


class Chain(Generic[_Item]):
    """Items of an iterator, computed lazily and kept; `known`: those computed so far."""

    __slots__ = ("_further", "known")

    def __init__(self, further: Iterator[_Item]) -> None:
        self._further = further
        self.known: list[_Item] = []

    def skip(self, n: int) -> Iterator[_Item]:
        """Yield all but the first n."""
        known = self.known
        while True:
            if n == len(known):
                found = next(self._further, None)
                if found is None:
                    return
                known.append(found)
            yield known[n]
            n += 1


class CopyingSource(LookupSource):
    """Copies what followed an earlier occurrence of the text's suffix.

    Its tokens are chosen: q is 1, and a token is accepted with probability p. A position has a
    `chain` of predictions, of which the first `passed` are consumed, and `advance(token)`."""

    _position: Any = None  # at the end of the committed text, while that is unchanged
    _position_length = 0  # length of that text, in tokens
    _streak = 0  # consecutive predicted tokens at its end

    def begin(self, prompt: Sequence[int]) -> None:
        self._streak, self._position = 0, None

    def committed(self, context: Sequence[int], hidden: Mapping[int, Rows]) -> None:
        position, self._position = self._position, None
        if position is None:
            return
        for prediction, token in zip(
            position.chain.known, context[self._position_length :], strict=False
        ):
            if prediction.token != token:
                self._streak = 0
                break
            self._streak += 1

    def position(self, session: Session) -> Any:
        held = len(session.context)
        if self._position is None or self._position_length != held:
            self._position = self.position_after(session.context, self._streak)
            self._position_length = held
        return self._position

    @abstractmethod
    def position_after(self, context: Sequence[int], streak: int) -> Any:
        """The position at the end of the committed text."""

    def advance(self, position: Any, token: int) -> Any:
        return position.advance(token)

    def predict(self, position: Any) -> Iterator[Prediction]:
        found: Iterator[Prediction] = position.chain.skip(position.passed)
        return found


class _Position:
    __slots__ = ("_automaton", "chain", "match", "passed")

    def __init__(
        self, automaton: SuffixAutomaton, match: Match, chain: Chain[Prediction], passed: int = 0
    ) -> None:
        self._automaton, self.match = automaton, match
        self.chain, self.passed = chain, passed

    def advance(self, token: int) -> _Position:
        automaton = self._automaton
        match = automaton.follow(self.match, token)
        first = next(self.chain.skip(self.passed), None)
        if first is None or first.token != token:
            return _Position(automaton, match, Chain(_predictions(automaton, match, 0)))
        return _Position(automaton, match, self.chain, self.passed + 1)


class NgramSource(CopyingSource):
    """Copies from the text itself. The index is shared by all sources that search it."""

    name = "ngram"
    priors: Mapping[str, tuple[float, ...]] = PRIORS

    def __init__(self, index: NgramIndex) -> None:
        self._index = index

    def begin(self, prompt: Sequence[int]) -> None:
        self._index.begin(prompt)
        super().begin(prompt)

    def position_after(self, context: Sequence[int], streak: int) -> _Position:
        # The index is updated on demand only, not in steps without planning.
        self._index.sync(context)
        automaton = self._index.automaton
        match = automaton.match()
        return _Position(automaton, match, Chain(_predictions(automaton, match, streak)))

    def alternatives(self, position: Any, most: int) -> list[tuple[int, float]]:
        automaton = self._index.automaton
        best = next(automaton.chain(position.match), None)
        total = 2 if best is None else max(2, best[3])
        found = automaton.continuations(position.match, most)
        return [(token, min(0.5, times / (total + 1))) for token, times in found]


def _predictions(automaton: SuffixAutomaton, match: Match, streak: int) -> Iterator[Prediction]:
    for token, length, count, total in automaton.chain(match):
        length = min(length, 32)
        yield Prediction(token, features_of(length, count, total, min(streak, 31)), _WEIGHT[length])
        streak += 1


@lru_cache(4096)
def features_of(
    length: int, count: int, total: int, streak: int
) -> tuple[float, float, float, float]:
    """Features of a token that followed a suffix of `length` tokens `count` times of `total`,
    after `streak` correct predictions."""
    return 1.0, _LOG2[length], logit(count / (total + 1)), _LOG2[streak + 1]


_WEIGHT = [min(float(length.bit_length()), 4.0) for length in range(33)]
"""By the length of a match: after a single repeated token no prediction is firm."""
_LOG2 = [0.0, *(min(5.0, math.log2(n)) for n in range(1, 33))]
