"""Prompt lookup: what followed the last time the text stood at this point.

Saxena 2023 (prompt lookup decoding), over a suffix automaton instead of n-grams of a fixed length.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from localspec.decoding.auto_sources import Prediction
from localspec.decoding.interfaces import Plan
from localspec.decoding.sampling import Rows
from localspec.decoding.session import Session
from localspec.decoding.tree import TokenTree
from localspec.drafters.streak import Streak
from localspec.drafters.suffix_automaton import Match, SuffixAutomaton
from localspec.policy.acceptance_estimator import logit

PRIORS = {
    "greedy": (-0.74, 0.36, 1.11, 0.59),
    "sampled": (-1.12, 0.48, 0.95, 0.3),
}
"""Fitted as those of the draft model, see `localspec.drafters.model`, to 794 and 1,266 greedy and
589 and 1,087 sampled places of the embedded and the real pair; log-loss on the judging halves, with
the weights before in brackets: greedy 0.460 (0.461) and 0.511 (0.513), sampled 0.577 (0.586) and,
worse, 0.549 (0.544). Features: see `_features`."""
_LEAD = 8
"""Tokens at the end of a prompt that a prediction is hung on."""
SHORTEST = 1
"""A single repeated token predicts little, and says so; it may still fill a free slot."""


class NgramIndex:
    """A suffix automaton that is kept equal to a session's committed tokens.

    Before them it may hold a text that is expected to come (see `expect`), which is looked up as if
    it had been said before.
    """

    def __init__(self) -> None:
        self._automaton = SuffixAutomaton()
        self._expected: list[int] = []

    def expect(self, prompt: Sequence[int], prediction: Sequence[int]) -> None:
        """Take a text for what will be said behind a prompt, until another one is expected.

        The end of the prompt is put before it, so that it is found from the first token on. What
        stands behind it, the beginning of the prompt, is expected in vain once.

        Args:
            prediction: its tokens; none to expect nothing.
        """
        expected = [*prompt[-_LEAD:], *prediction] if prediction else []
        if expected != self._expected:
            self._expected = expected
            self._start_anew()

    def sync(self, context: Sequence[int]) -> None:
        """Append what is new in `context`; start anew where it is another text."""
        known = self._automaton.tokens
        n = len(known) - len(self._expected)
        if n and (n > len(context) or context[n - 1] != known[-1]):
            self._start_anew()
            n = 0
        if n < len(context):
            self._automaton.extend(context[n:])

    def begin(self, context: Sequence[int]) -> None:
        """A new generation: keep the automaton only if `context` really goes on from its text."""
        known = self._automaton.tokens[len(self._expected) :]
        if list(context[: len(known)]) != known:
            self._start_anew()
        self.sync(context)

    def _start_anew(self) -> None:
        self._automaton = SuffixAutomaton()
        self._automaton.extend(self._expected)

    def match(self, beyond: Sequence[int] = ()) -> Match:
        """The longest repeated ending of the text followed by the tokens `beyond`."""
        match = self._automaton.match()
        for token in beyond:
            match = self._automaton.follow(match, token)
        return match

    def follow(self, match: Match, token: int) -> Match:
        """The match after one more imagined token."""
        return self._automaton.follow(match, token)

    def best(self, match: Match, shortest: int) -> tuple[int, int, int, int] | None:
        """See SuffixAutomaton.best."""
        return self._automaton.best(match, shortest)

    def chain(self, match: Match, shortest: int) -> Iterator[tuple[int, int, int, int]]:
        """See SuffixAutomaton.chain."""
        return self._automaton.chain(match, shortest)

    def candidates(self, match: Match, most: int, shortest: int) -> list[tuple[int, int]]:
        """See SuffixAutomaton.continuations."""
        return self._automaton.continuations(match, most, shortest)

    def run(self, match: Match, token: int, length: int, shortest: int) -> list[int]:
        """`token` and what most likely follows it, at most `length` tokens."""
        tokens: list[int] = []
        while len(tokens) < length:
            tokens.append(token)
            match = self._automaton.follow(match, token)
            following = self._automaton.continuations(match, 1, shortest)
            if not following:
                break
            token = following[0][0]
        return tokens


class _Expected:
    """A chain of predictions, worked out once and as far as it is asked for.

    A place and those that it expects to come to have one in common: behind a token that was
    expected, the same follows as before.

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
        """The predictions behind the first n, for as long as anything is known."""
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
    """Where the text, and what was imagined behind it, ends.

    Attributes:
        match: in the automaton.
        streak: tokens in a row, up to here, that were predicted.
        committed: whether nothing is imagined.
    """

    __slots__ = ("_expected", "_index", "_passed", "committed", "match", "streak")

    def __init__(
        self,
        index: NgramIndex,
        match: Match,
        streak: int,
        *,
        committed: bool = False,
        expected: _Expected | None = None,
        passed: int = 0,
    ) -> None:
        """`expected`: what was expected `passed` tokens ago, all of which came; None looks anew."""
        self._index = index
        self.streak = streak
        self._expected = expected or _Expected(index.chain(match, SHORTEST), streak)
        self._passed = passed
        self.match = match
        self.committed = committed

    def expected(self) -> Iterator[Prediction]:
        """What most likely follows, and what that."""
        return self._expected.behind(self._passed)

    def followed(self, token: int) -> _Place:
        """The place one token further."""
        match, first = self._index.follow(self.match, token), next(self.expected(), None)
        if first is None or first.token != token:
            return _Place(self._index, match, 0)
        streak, passed = self.streak + 1, self._passed + 1
        return _Place(self._index, match, streak, expected=self._expected, passed=passed)


class NgramSource:
    """Copies the continuation of the longest earlier occurrence, several of them for a tree.

    Implements `localspec.decoding.auto_sources.LookupSource`. Its tokens are chosen, not drawn: q
    is 1 on each, and a token is accepted with probability p(token). It runs no model, so it costs
    microseconds.

    Args:
        index: shared with every other source that looks things up in the text.
        shortest: by name, matches of fewer tokens are not worth proposing.
    """

    priors: Mapping[str, tuple[float, ...]] = PRIORS
    hidden: tuple[int, ...] = ()
    native_seconds = 0.0

    def __init__(self, index: NgramIndex, *, name: str = "ngram", shortest: int = 2) -> None:
        self.name = name
        self._index = index
        self._shortest = shortest
        self._streak = Streak()
        self._place: _Place | None = None  # the end of the committed text, while that stays
        self._placed = -1  # tokens of that text

    def begin(self, prompt: Sequence[int]) -> None:
        self._index.begin(prompt)
        self._streak.begin()
        self._place = None

    def propose(self, session: Session, plan: Plan, tree: TokenTree) -> None:
        self._index.sync(session.context)
        tip = tree.tip()
        match = self._index.match(tree.path_tokens(tip))
        for token, _ in self._index.candidates(match, plan.width, self._shortest):
            node = tip
            for follower in self._index.run(match, token, plan.depth, self._shortest):
                existing = tree.child_with(node, follower)
                node = tree.add(follower, node, self.name) if existing is None else existing

    def committed(self, context: Sequence[int], hidden: Mapping[int, Rows]) -> None:
        # The index reads on once it is asked: not in the steps for which nothing is planned.
        self._streak.committed(context)
        self._place = None

    # In `auto`.

    def kind(self, session: Session) -> str:
        return "greedy" if session.sampler.greedy else "sampled"

    def place(self, session: Session) -> _Place:
        held = len(session.context)
        if self._place is None or self._placed != held:
            self._index.sync(session.context)
            self._streak.at(held)
            match, streak = self._index.match(), self._streak.length
            self._place, self._placed = _Place(self._index, match, streak, committed=True), held
        return self._place

    def follow(self, place: _Place, token: int) -> _Place:
        return place.followed(token)

    def expected(self, place: _Place) -> Iterator[Prediction]:
        predictions = place.expected()
        return self._streak.noted(predictions) if place.committed else predictions

    def others(self, place: _Place, most: int) -> list[tuple[int, float]]:
        best = self._index.best(place.match, SHORTEST)
        total = 2 if best is None else max(2, best[3])
        found = self._index.candidates(place.match, most, SHORTEST)
        return [(token, min(0.5, times / (total + 1))) for token, times in found]


@lru_cache(4096)
def _features(
    length: int, count: int, total: int, streak: int
) -> tuple[float, float, float, float]:
    """Of a token that followed an ending of so many tokens `count` times, where anything did so
    `total` times, behind so many predictions in a row that were right.

    A long match alone says that the text repeats itself, the streak that the target goes along
    with it.
    """
    return 1.0, _LOG2[length], logit(count / (total + 1)), _LOG2[streak + 1]


_WEIGHT = [min(float(length.bit_length()), 4.0) for length in range(33)]
_LOG2 = [0.0, *(min(5.0, math.log2(n)) for n in range(1, 33))]
