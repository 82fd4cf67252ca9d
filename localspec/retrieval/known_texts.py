"""Suffixes that occur in known texts, and which tokens followed them there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

LONGEST = 32
"""Most tokens of a suffix to search for."""


class KnownTexts(Protocol):
    def longest(self, ending: Sequence[int]) -> Iterator[KnownSuffix]:
        """Yield the longest known suffix of `ending`, which has at least the latest LONGEST tokens
        of a longer text; then shorter ones, lazily."""
        ...

    def following(self, places: Sequence[Any], ahead: int) -> Sequence[int]:
        """The tokens that are `ahead` tokens (at least 1) after these places; -1 beyond the end of
        a text."""
        ...


class KnownSuffix(NamedTuple):
    """A suffix of `length` tokens that occurs `total` times in `texts`. `places`: the examined
    occurrences."""

    texts: KnownTexts
    length: int
    total: int
    places: Sequence[Any]

    def followers(self) -> dict[int, int]:
        """How often each token follows, the most frequent one first."""
        share = self.total / len(self.places)
        groups = _by_token(self.places, self.texts.following(self.places, 1))
        return {token: max(1, round(len(group) * share)) for token, group in groups.items()}

    def chain(self) -> Iterator[tuple[int, int, int, int]]:
        """Yield the most frequent continuation lazily: each token, the length of the suffix before
        it, how often it follows that, and how often anything does."""
        texts, length, total, places = self
        ahead = 1
        while places:
            tokens = texts.following(places, ahead)
            if len(places) == 1:
                token, count = tokens[0], total
                if token < 0:
                    return
            else:
                groups, share = _by_token(places, tokens), total / len(places)
                token, places = next(iter(groups.items()), (-1, ()))
                count = max(1, round(len(places) * share))
            if places:
                yield token, length, count, total
            length, total, ahead = min(length + 1, LONGEST), count, ahead + 1


def _by_token(places: Sequence[Any], tokens: Sequence[int]) -> dict[int, list[Any]]:
    """Places by the token there, the most frequent first; equals keep the order of places."""
    groups: dict[int, list[Any]] = {}
    for place, token in zip(places, tokens, strict=True):
        if token >= 0:
            groups.setdefault(token, []).append(place)
    return dict(sorted(groups.items(), key=lambda group: -len(group[1])))
