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
"""Fitted as those of `localspec.drafters.draft_model`. Features: see `features_of`."""
_LEAD = 8
"""Tokens at the end of a prompt that a prediction is hung on."""


class NgramIndex:
    """A suffix automaton kept equal to the committed tokens, behind a text that is expected."""

    def __init__(self) -> None:
        self.automaton = SuffixAutomaton()
        self._expected: list[int] = []

    def expect(self, prompt: Sequence[int], prediction: Sequence[int]) -> None:
        """Expect a text behind a prompt, until another one is expected; an empty one for none.

        The end of the prompt is put before it, so that it is found from the first token on."""
        expected = [*prompt[-_LEAD:], *prediction] if prediction else []
        if expected != self._expected:
            self._expected = expected
            self._start_anew()

    def sync(self, context: Sequence[int]) -> None:
        known = self.automaton.tokens
        n = len(known) - len(self._expected)
        if n and (n > len(context) or context[n - 1] != known[-1]):
            self._start_anew()
            n = 0
        if n < len(context):
            self.automaton.extend(context[n:])

    def begin(self, context: Sequence[int]) -> None:
        """A new generation: start anew unless `context` goes on from the text."""
        known = self.automaton.tokens[len(self._expected) :]
        if list(context[: len(known)]) != known:
            self._start_anew()
        self.sync(context)

    def _start_anew(self) -> None:
        self.automaton = SuffixAutomaton()
        self.automaton.extend(self._expected)


class Chain(Generic[_Item]):
    """What an iterator gives, computed once and on demand; `known`: what was."""

    __slots__ = ("_further", "known")

    def __init__(self, further: Iterator[_Item]) -> None:
        self._further = further
        self.known: list[_Item] = []

    def behind(self, n: int) -> Iterator[_Item]:
        """All but the first n."""
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
    """Copies what followed an earlier occurrence of the text's ending.

    Its tokens are chosen: q is 1, and a token is accepted with probability p. A place has a `chain`
    of predictions, of which those after the first `passed` are expected there, and `followed`, the
    place after a token."""

    _place: Any = None  # the end of the committed text, while that stays
    _placed = 0  # tokens of that text
    _streak = 0  # tokens in a row, up to its end, that were predicted

    def begin(self, prompt: Sequence[int]) -> None:
        self._streak, self._place = 0, None

    def committed(self, context: Sequence[int], hidden: Mapping[int, Rows]) -> None:
        place, self._place = self._place, None
        if place is None:
            return
        for prediction, token in zip(place.chain.known, context[self._placed :], strict=False):
            if prediction.token != token:
                self._streak = 0
                break
            self._streak += 1

    def place(self, session: Session) -> Any:
        held = len(session.context)
        if self._place is None or self._placed != held:
            self._place, self._placed = self.place_behind(session.context, self._streak), held
        return self._place

    @abstractmethod
    def place_behind(self, context: Sequence[int], streak: int) -> Any:
        """The end of the committed text."""

    def follow(self, place: Any, token: int) -> Any:
        return place.followed(token)

    def expected(self, place: Any) -> Iterator[Prediction]:
        found: Iterator[Prediction] = place.chain.behind(place.passed)
        return found


class _Place:
    __slots__ = ("_automaton", "chain", "match", "passed")

    def __init__(
        self, automaton: SuffixAutomaton, match: Match, chain: Chain[Prediction], passed: int = 0
    ) -> None:
        self._automaton, self.match = automaton, match
        self.chain, self.passed = chain, passed

    def followed(self, token: int) -> _Place:
        automaton = self._automaton
        match = automaton.follow(self.match, token)
        first = next(self.chain.behind(self.passed), None)
        if first is None or first.token != token:
            return _Place(automaton, match, Chain(_predictions(automaton, match, 0)))
        return _Place(automaton, match, self.chain, self.passed + 1)


class NgramSource(CopyingSource):
    """Looks the ending up in the text itself.

    Args:
        index: shared with every other source that looks things up in the text.
    """

    name = "ngram"
    priors: Mapping[str, tuple[float, ...]] = PRIORS

    def __init__(self, index: NgramIndex) -> None:
        self._index = index

    def begin(self, prompt: Sequence[int]) -> None:
        self._index.begin(prompt)
        super().begin(prompt)

    def place_behind(self, context: Sequence[int], streak: int) -> _Place:
        # The index reads on once it is asked: not in the steps for which nothing is planned.
        self._index.sync(context)
        automaton = self._index.automaton
        match = automaton.match()
        return _Place(automaton, match, Chain(_predictions(automaton, match, streak)))

    def others(self, place: Any, most: int) -> list[tuple[int, float]]:
        automaton = self._index.automaton
        best = next(automaton.chain(place.match), None)
        total = 2 if best is None else max(2, best[3])
        found = automaton.continuations(place.match, most)
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
    """Of a token that followed an ending of `length` tokens `count` times, where anything did so
    `total` times, behind `streak` right predictions."""
    return 1.0, _LOG2[length], logit(count / (total + 1)), _LOG2[streak + 1]


_WEIGHT = [min(float(length.bit_length()), 4.0) for length in range(33)]
"""By the length of a match: behind a single repeated token nothing is firm."""
_LOG2 = [0.0, *(min(5.0, math.log2(n)) for n in range(1, 33))]
