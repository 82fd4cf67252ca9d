"""Prompt lookup (Saxena 2023), over a suffix automaton instead of n-grams of a fixed length."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from localspec.decoding.sampling import Rows
from localspec.decoding.session import Session
from localspec.decoding.sources import LookupSource, Prediction
from localspec.drafters.suffix_automaton import Match, SuffixAutomaton
from localspec.policy.acceptance_estimator import logit

PRIORS = {
    "greedy": (-0.74, 0.36, 1.11, 0.59),
    "sampled": (-1.12, 0.48, 0.95, 0.3),
}
"""Fitted as those of `localspec.drafters.model`. Features: see `_features`."""
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


class Streak:
    """How many tokens in a row, up to now, a lookup source predicted rightly.

    Attributes:
        length: tokens in a row.
    """

    __slots__ = ("_at", "_said", "length")

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self.length = 0
        self._said: list[int] | None = None
        self._at = -1

    def at(self, count: int) -> None:
        if self._at != count:
            self._said, self._at = None, count

    def noted(self, predictions: Iterator[Prediction]) -> Iterator[Prediction]:
        """The same predictions; those behind the committed text are noted the first time, as far as
        they are asked for."""
        if self._said is not None:
            return predictions
        self._said = []
        return self._keeping(predictions, self._said)

    def _keeping(self, predictions: Iterator[Prediction], said: list[int]) -> Iterator[Prediction]:
        for prediction in predictions:
            said.append(prediction.token)
            yield prediction

    def committed(self, context: Sequence[int]) -> None:
        for said, token in zip(self._said or (), context[self._at :], strict=False):
            if said != token:
                self.length = 0
                break
            self.length += 1
        self._said, self._at = None, -1


class _Expected:
    """A chain of predictions, computed once and on demand, shared by the places along it.

    Args:
        chain: see `SuffixAutomaton.chain`.
        streak: tokens in a row before the first one that were predicted.
    """

    __slots__ = ("_chain", "_known", "_streak")

    def __init__(self, chain: Iterator[tuple[int, int, int, int]], streak: int) -> None:
        self._chain = chain
        self._streak = streak
        self._known: list[Prediction] = []

    def behind(self, n: int) -> Iterator[Prediction]:
        known, streak = self._known, self._streak
        while True:
            if n == len(known):
                found = next(self._chain, None)
                if found is None:
                    return
                token, length, count, total = found
                length = min(length, 32)
                features = _features(length, count, total, min(streak + n, 31))
                known.append(Prediction(token, features, _WEIGHT[length]))
            yield known[n]
            n += 1


class _Place:
    """The end of the text and what was imagined behind it.

    Args:
        streak: tokens in a row, up to here, that were predicted.
        committed: whether nothing is imagined.
        expected: what was expected `passed` tokens ago, all of which came; None looks anew.
    """

    __slots__ = ("_automaton", "_expected", "_passed", "committed", "match", "streak")

    def __init__(
        self,
        automaton: SuffixAutomaton,
        match: Match,
        streak: int,
        *,
        committed: bool = False,
        expected: _Expected | None = None,
        passed: int = 0,
    ) -> None:
        self._automaton, self.match, self.streak = automaton, match, streak
        self._expected = expected or _Expected(automaton.chain(match), streak)
        self._passed = passed
        self.committed = committed

    def expected(self) -> Iterator[Prediction]:
        return self._expected.behind(self._passed)

    def followed(self, token: int) -> _Place:
        match, first = self._automaton.follow(self.match, token), next(self.expected(), None)
        if first is None or first.token != token:
            return _Place(self._automaton, match, 0)
        streak, passed = self.streak + 1, self._passed + 1
        return _Place(self._automaton, match, streak, expected=self._expected, passed=passed)

    def others(self, most: int) -> list[tuple[int, float]]:
        best = self._automaton.best(self.match)
        total = 2 if best is None else max(2, best[3])
        found = self._automaton.continuations(self.match, most)
        return [(token, min(0.5, times / (total + 1))) for token, times in found]


class NgramSource(LookupSource):
    """Copies the continuation of the longest earlier occurrence, several of them for a tree.

    Its tokens are chosen: q is 1, and a token is accepted with probability p.

    Args:
        index: shared with every other source that looks things up in the text.
    """

    name = "ngram"
    priors: Mapping[str, tuple[float, ...]] = PRIORS

    def __init__(self, index: NgramIndex) -> None:
        self._index = index
        self._streak = Streak()
        self._place: _Place | None = None  # the end of the committed text, while that stays
        self._placed = -1  # tokens of that text

    def begin(self, prompt: Sequence[int]) -> None:
        self._index.begin(prompt)
        self._streak.begin()
        self._place = None

    def committed(self, context: Sequence[int], hidden: Mapping[int, Rows]) -> None:
        # The index reads on once it is asked: not in the steps for which nothing is planned.
        self._streak.committed(context)
        self._place = None

    def place(self, session: Session) -> _Place:
        held = len(session.context)
        if self._place is None or self._placed != held:
            self._index.sync(session.context)
            self._streak.at(held)
            automaton = self._index.automaton
            match, streak = automaton.match(), self._streak.length
            self._place, self._placed = _Place(automaton, match, streak, committed=True), held
        return self._place

    def follow(self, place: _Place, token: int) -> _Place:
        return place.followed(token)

    def expected(self, place: _Place) -> Iterator[Prediction]:
        predictions = place.expected()
        return self._streak.noted(predictions) if place.committed else predictions

    def others(self, place: _Place, most: int) -> list[tuple[int, float]]:
        return place.others(most)


@lru_cache(4096)
def _features(
    length: int, count: int, total: int, streak: int
) -> tuple[float, float, float, float]:
    """Of a token that followed an ending of `length` tokens `count` times, where anything did so
    `total` times, behind `streak` right predictions."""
    return 1.0, _LOG2[length], logit(count / (total + 1)), _LOG2[streak + 1]


_WEIGHT = [min(float(length.bit_length()), 4.0) for length in range(33)]
"""By the length of a match: behind a single repeated token nothing is firm."""
_LOG2 = [0.0, *(min(5.0, math.log2(n)) for n in range(1, 33))]
