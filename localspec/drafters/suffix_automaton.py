"""An online suffix automaton over token ids: continuations of the longest repeated suffix.

Blumer et al. 1985; appending a token takes amortised constant time. The suffix link of the state
for the whole text *is* the longest repeated suffix. Tokens are counted only after that one, as in
PPM (Cleary & Witten 1984, "update exclusion")."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import NamedTuple

START = 0


class Match(NamedTuple):
    """A state of the automaton, and the length of the matched suffix."""

    state: int
    length: int


class Followers(dict[int, int]):
    """How often each token followed a state. `best`: the most frequent one, among equals the latest
    to become so; `repeats`: number of repeated continuations."""

    __slots__ = ("best", "repeats")

    def __init__(self, counts: Mapping[int, int], best: int, repeats: int = 0) -> None:
        super().__init__(counts)
        self.best, self.repeats = best, repeats


class SuffixAutomaton:
    """All substrings of a growing token sequence. A token without a count after a state followed it
    once."""

    __slots__ = ("_follows", "_last", "_length", "_link", "_next", "tokens")

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self._next: list[dict[int, int]] = [{}]
        self._link: list[int] = [-1]
        self._length: list[int] = [0]
        self._follows: list[Followers | None] = [None]
        self._last = START

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

    def continuations(self, match: Match, most: int) -> list[tuple[int, int]]:
        """Continuations of a match: up to `most` pairs of token and count.

        Those of the longest match come first, by count, the most recent first among equals; then
        those of its shorter suffixes."""
        found: dict[int, int] = {}
        state, length = match
        while length and state != START and len(found) < most:
            for token, count in self._likeliest(state, most):
                if len(found) == most:
                    break
                found.setdefault(token, count)
            state = self._link[state]
            length = self._length[state]
        return list(found.items())

    def chain(self, match: Match) -> Iterator[tuple[int, int, int, int]]:
        """Yield the most likely continuation of a match, token by token, lazily: the token, the
        length of the suffix that it followed, its count there, and the count of all tokens."""
        state, length = match
        while length and state != START:
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
                yield token, length, follows[token], len(options) + follows.repeats
            state, length = options[token], length + 1

    def _likeliest(self, state: int, most: int) -> list[tuple[int, int]]:
        """Up to `most` tokens that followed a state, with counts, likeliest first."""
        options, follows = self._next[state], self._follows[state]
        if follows is None:
            return [(token, 1) for token in islice(options, most)]
        best = follows.best
        ranked = sorted(follows, key=follows.__getitem__, reverse=True)[:most]
        found = [(best, follows[best]), *((t, follows[t]) for t in ranked if t != best)]
        if len(found) < most:
            found += ((t, 1) for t in islice(options, len(found) + most) if t not in follows)
        return found[:most]

    def _count(self, state: int, token: int) -> None:
        if state <= START:
            return
        follows = self._follows[state]
        if follows is None:  # the first one came before any repeat
            first = next(iter(self._next[state]))
            follows = self._follows[state] = Followers({first: 1}, first)
        count = follows[token] = follows.get(token, 0) + 1
        follows.repeats += count > 1
        if count >= follows[follows.best]:
            follows.best = token

    def _append(self, token: int) -> None:
        self.tokens.append(token)
        n = len(self.tokens)
        fresh = self._state(n, {}, START)
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
        """Split off the shorter strings of `target`, the suffixes of `state` + token."""
        clone = self._state(self._length[state] + 1, self._next[target].copy(), self._link[target])
        follows = self._follows[target]
        if follows is not None:
            self._follows[clone] = Followers(follows, follows.best, follows.repeats)
        self._link[target] = clone
        while state != -1 and self._next[state].get(token) == target:
            self._next[state][token] = clone
            state = self._link[state]
        return clone

    def _state(self, length: int, transitions: dict[int, int], link: int) -> int:
        self._next.append(transitions)
        self._link.append(link)
        self._length.append(length)
        self._follows.append(None)
        return len(self._next) - 1
