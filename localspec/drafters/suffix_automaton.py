"""An online suffix automaton over token ids: what followed the longest repeated ending.

Blumer et al. 1985; appending a token takes amortised constant time. The suffix link of the state
for the whole text *is* the longest repeated ending. Tokens are counted behind that alone, as in PPM
(Cleary & Witten 1984, "update exclusion")."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import nlargest
from itertools import islice
from typing import NamedTuple

START = 0
KEPT = 4
"""Followers of a state whose order is kept, as many as a tree looks at in one place."""


class Match(NamedTuple):
    """A state of the automaton, and how many tokens of the ending occurred before."""

    state: int
    length: int


class Followers(dict[int, int]):
    """How often each token was counted behind a state.

    A token is likelier than another if it followed more often (see `SuffixAutomaton`), among equals
    if it did so first.

    Attributes:
        best: the likeliest, or the newest if that followed as often.
        most: how often it followed.
        newest: the token that was counted last.
        further: how often any token followed a second time, or a third one, and so on.
        repeated: the tokens that followed more than once, likeliest first; at most KEPT.
    """

    __slots__ = ("best", "further", "most", "newest", "repeated")

    def __init__(self, best: int) -> None:
        self.best = self.newest = best
        self.most = 1
        self.further = 0
        self.repeated: tuple[int, ...] = ()

    def copy(self) -> Followers:
        made = Followers(self.best)
        made.update(self)
        made.newest, made.most, made.further = self.newest, self.most, self.further
        made.repeated = self.repeated
        return made


class SuffixAutomaton:
    """All substrings of a growing token sequence.

    A token followed a state as often as it was counted there. The first one to follow did so once
    more, before there was a repeat; those that were never counted did so once."""

    __slots__ = ("_first", "_follows", "_last", "_length", "_link", "_next", "tokens")

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self._next: list[dict[int, int]] = [{}]
        self._link: list[int] = [-1]
        self._length: list[int] = [0]
        self._first: list[int] = [0]  # where each state's strings ended for the first time
        self._follows: list[Followers | None] = [None]
        self._last = START

    def __len__(self) -> int:
        return len(self.tokens)

    def extend(self, tokens: Iterable[int]) -> None:
        for token in tokens:
            self._count(self._link[self._last], token)
            self._append(token)

    def match(self) -> Match:
        state = max(self._link[self._last], START)
        return Match(state, self._length[state])

    def follow(self, match: Match, token: int) -> Match:
        """The match after one more token that is not (yet) part of the text."""
        state, length = match.state, match.length
        while token not in self._next[state]:
            if state == START:
                return Match(START, 0)
            state = self._link[state]
            length = self._length[state]
        return Match(self._next[state][token], length + 1)

    def continuations(self, match: Match, most: int, shortest: int = 1) -> list[tuple[int, int]]:
        """What may follow a match: up to `most` pairs of token and count.

        Those of the longest match come first, by count, the most recent first among equals; then
        those of its shorter endings, down to `shortest` tokens."""
        found: dict[int, int] = {}
        state, length = match
        while length >= shortest and state != START and len(found) < most:
            for token, count in self._likeliest(state, most):
                if len(found) == most:
                    break
                found.setdefault(token, count)
            state = self._link[state]
            length = self._length[state]
        return list(found.items())

    def best(self, match: Match, shortest: int = 1) -> tuple[int, int, int, int] | None:
        """The token that most likely follows a match, length of the ending it followed, how often
        it did, and how often anything did; None where nothing is known."""
        return next(self.chain(match, shortest), None)

    def chain(self, match: Match, shortest: int = 1) -> Iterator[tuple[int, int, int, int]]:
        """`best`, and what follows that, for as long as anything is known; on demand."""
        state, length = match
        while length >= shortest and state != START:
            options = self._next[state]
            if not options:
                state = self._link[state]
                length = self._length[state]
                continue
            follows = self._follows[state]
            if follows is None:
                token = next(iter(options))
                yield token, length, 1, len(options)
            else:
                token = follows.best
                yield token, length, follows.most, len(options) + follows.further
            state, length = options[token], length + 1

    def _likeliest(self, state: int, most: int) -> list[tuple[int, int]]:
        """Up to `most` tokens that followed a state, with counts, likeliest first, the newest first
        among equals."""
        options, follows = self._next[state], self._follows[state]
        if follows is None:
            return [(token, 1) for token in islice(options, most)]
        first, newest = next(iter(options)), follows.newest
        if most == 1:
            return [(follows.best, follows.most)]
        if most > KEPT:
            counted = [(t, max(1, follows.get(t, 0) + (t == first))) for t in options]
            return nlargest(most, counted, key=lambda each: (each[1], each[0] == newest))
        found = [(token, follows[token] + (token == first)) for token in follows.repeated]
        if len(found) < KEPT:  # the others followed once
            once = (token for token in options if token not in follows.repeated)
            found += [(token, 1) for token in islice(once, most)]
        latest = newest, follows[newest] + (newest == first)
        if latest in found:
            found.remove(latest)
        place = sum(count > latest[1] for _, count in found)
        found.insert(place, latest)
        return found[:most]

    def _count(self, state: int, token: int) -> None:
        if state <= START:
            return
        options, follows = self._next[state], self._follows[state]
        first = next(iter(options))
        if follows is None:
            follows = self._follows[state] = Followers(first)
        counted = follows.get(token, 0) + 1
        follows[token] = counted
        follows.newest = token
        count, repeated = counted + (token == first), follows.repeated
        if count == 1:
            follows.best = repeated[0] if repeated else token
            return
        follows.further += 1
        others = [other for other in repeated if other != token]
        place = len(others)
        while place and not self._likelier(state, others[place - 1], count, token):
            place -= 1
        others.insert(place, token)
        follows.repeated = tuple(others[:KEPT])
        leader = others[0]
        follows.most = most = follows[leader] + (leader == first)
        follows.best = token if count == most else leader

    def _likelier(self, state: int, one: int, count: int, token: int) -> bool:
        options, follows = self._next[state], self._follows[state]
        assert follows is not None
        other = follows[one] + (one == next(iter(options)))
        if other != count:
            return other > count
        return self._first[options[one]] < self._first[options[token]]

    def _append(self, token: int) -> None:
        self.tokens.append(token)
        n = len(self.tokens)
        fresh = self._state(n, {}, START, n)
        state = self._last
        while state != -1 and token not in self._next[state]:
            self._next[state][token] = fresh
            state = self._link[state]
        if state != -1:
            target = self._next[state][token]
            if self._length[target] == self._length[state] + 1:
                self._link[fresh] = target
            else:
                self._link[fresh] = self._split(state, token, target)
        self._last = fresh

    def _split(self, state: int, token: int, target: int) -> int:
        """Give the shorter strings of `target`, those that end `state` + token, their own state."""
        options, link, first = self._next[target], self._link[target], self._first[target]
        clone = self._state(self._length[state] + 1, options.copy(), link, first)
        follows = self._follows[target]
        self._follows[clone] = None if follows is None else follows.copy()
        self._link[target] = clone
        while state != -1 and self._next[state].get(token) == target:
            self._next[state][token] = clone
            state = self._link[state]
        return clone

    def _state(self, length: int, transitions: dict[int, int], link: int, first: int) -> int:
        self._next.append(transitions)
        self._link.append(link)
        self._length.append(length)
        self._first.append(first)
        self._follows.append(None)
        return len(self._next) - 1
