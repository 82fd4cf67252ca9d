"""An online suffix automaton over token ids: what followed the longest repeated ending.

Blumer et al. 1985; the online construction appends a token in amortised constant time (transitions
in hash tables) and memory grows linearly with the text. After every append the suffix link of the
state for the whole text *is* the longest ending that occurred before, so that looking it up costs
nothing.

Counts follow the update rule of PPM (Cleary & Witten 1984; "update exclusion"): what followed is
counted at the longest repeated ending only. That keeps an append at constant cost, where exact
occurrence counts would have to walk all shorter endings, and predicts better besides.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

START = 0


@dataclass(frozen=True, slots=True)
class Match:
    """A place in the automaton that the end of the text (and what was imagined after it) reached.

    Attributes:
        state: the automaton's state.
        length: tokens of the ending that occurred before; 0 where nothing matches.
    """

    state: int
    length: int


class SuffixAutomaton:
    """All substrings of a growing token sequence."""

    __slots__ = ("_follows", "_last", "_length", "_link", "_newest", "_next", "tokens")

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self._next: list[dict[int, int]] = [{}]
        self._link: list[int] = [-1]
        self._length: list[int] = [0]
        self._follows: list[dict[int, int] | None] = [None]
        self._newest: list[int] = [-1]
        self._last = START

    def __len__(self) -> int:
        return len(self.tokens)

    def extend(self, tokens: Iterable[int]) -> None:
        """Append tokens, amortised O(1) each."""
        for token in tokens:
            self._count(self._link[self._last], token)
            self._append(token)

    def match(self) -> Match:
        """The longest ending of the text that occurred before."""
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
        """What may follow a match: up to `most` pairs of token and count, likeliest first.

        Continuations of the longest match come first, by count, the most recent first among
        equals; then those of its shorter endings, down to `shortest` tokens. A count is the number
        of times the token is known to have followed.
        """
        found: dict[int, int] = {}
        state, length = match.state, match.length
        while length >= shortest and state != START and len(found) < most:
            options = self._next[state]
            new = [token for token in options if token not in found]
            counts = self._counts(state)
            if len(new) > 1:
                newest = self._newest[state]
                new.sort(key=lambda t: (counts.get(t, 1), t == newest), reverse=True)
            for token in new[: most - len(found)]:
                found[token] = counts.get(token, 1)
            state = self._link[state]
            length = self._length[state]
        return list(found.items())

    def best(self, match: Match, shortest: int = 1) -> tuple[int, int, int, int] | None:
        """What most likely follows a match, None where nothing is known.

        Returns:
            The token, the length of the ending it followed, how often it did, and how often
            anything did.
        """
        state, length = match.state, match.length
        while length >= shortest and state != START:
            options = self._next[state]
            if len(options) == 1:
                (token,) = options
                follows = self._follows[state]
                count = 1 + (follows.get(token, 0) if follows else 0)
                return token, length, count, count
            if options:
                counts = self._counts(state)
                newest = self._newest[state]
                token = max(options, key=lambda t: (counts.get(t, 1), t == newest))
                return token, length, counts.get(token, 1), sum(counts.get(t, 1) for t in options)
            state = self._link[state]
            length = self._length[state]
        return None

    def _counts(self, state: int) -> dict[int, int]:
        """How often each token is known to have followed; those missing did so once.

        The first to follow did so once before there was a repeat, and anything counted.
        """
        counts = dict(self._follows[state] or {})
        first = next(iter(self._next[state]), None)
        if first is not None:
            counts[first] = counts.get(first, 0) + 1
        return counts

    def _count(self, state: int, token: int) -> None:
        """Note that `token` followed the longest repeated ending, which `state` stands for."""
        if state <= START:
            return
        follows = self._follows[state]
        if follows is None:
            follows = self._follows[state] = {}
        follows[token] = follows.get(token, 0) + 1
        self._newest[state] = token

    def _append(self, token: int) -> None:
        self.tokens.append(token)
        fresh = self._state(len(self.tokens), {}, START)
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
        clone = self._state(self._length[state] + 1, dict(self._next[target]), self._link[target])
        follows = self._follows[target]
        self._follows[clone] = None if follows is None else dict(follows)
        self._newest[clone] = self._newest[target]
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
        self._newest.append(-1)
        return len(self._next) - 1
