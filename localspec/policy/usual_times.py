"""What a pass of one kind takes on one count of threads, undisturbed, learned from the passes."""

from __future__ import annotations

STRETCH = 1024
"""Tokens of context that share a figure; it grows with the context."""
FALL, RISE, MOST_RISE = 0.5, 0.02, 1.25
"""A faster pass is believed at once, as nothing makes a pass too fast. A slower one moves the
figure by little, however slow it was."""
GROWTH = 1.3
"""Most that a stretch adds to the one before it."""
CHUNK = 16
"""Passes over more tokens are told apart by powers of two, and by seconds per token."""

_Kind = tuple[int, str, int]


class UsualTimes:
    """Seconds of undisturbed passes, by thread count, model, size and context."""

    def __init__(self) -> None:
        self._known: dict[_Kind, dict[int, float]] = {}

    def seconds(self, count: int, user: str, tokens: int, context: int) -> float | None:
        """Of such a pass; None where none of its kind ran."""
        found = self._near(_kind(count, user, tokens), context // STRETCH)
        return None if found is None else found * _units(tokens)

    def per_token(self, count: int, user: str, context: int) -> float | None:
        """Of a chunk of a prompt; of the longest ones that ran there."""
        kinds = [k for k in self._known if k[:2] == (count, user) and k[2] > CHUNK]
        return self._near(max(kinds, default=(0, "", 0)), context // STRETCH)

    def learn(
        self, count: int, user: str, tokens: int, context: int, seconds: float
    ) -> float | None:
        """Take a pass into account; returns what `seconds` said of it before."""
        kind, stretch, units = _kind(count, user, tokens), context // STRETCH, _units(tokens)
        seconds /= units
        table = self._known.setdefault(kind, {})
        known = table.get(stretch)
        if known is None:
            near = self._near(kind, stretch)
            table[stretch] = seconds if near is None else min(seconds, near * GROWTH)
            return None if near is None else near * units
        if seconds < known:
            table[stretch] = known + FALL * (seconds - known)
        else:
            table[stretch] = known + RISE * (min(seconds, MOST_RISE * known) - known)
        return known * units

    def price(self, count: int, other: int) -> float | None:
        """Passes on one count in those on another, of the kinds that ran on both."""
        of = over = 0.0
        for (threads, user, size), table in self._known.items():
            if threads != count:
                continue
            compared = self._known.get((other, user, size), {})
            for stretch in table.keys() & compared.keys():
                of += table[stretch]
                over += compared[stretch]
        return of / over if over else None

    def _near(self, kind: _Kind, stretch: int) -> float | None:
        """At this stretch, else at the nearest."""
        table = self._known.get(kind)
        if not table:
            return None
        if stretch in table:
            return table[stretch]
        return table[min(table, key=lambda known: abs(known - stretch))]


def _kind(count: int, user: str, tokens: int) -> _Kind:
    return count, user, tokens if tokens <= CHUNK else CHUNK + tokens.bit_length()


def _units(tokens: int) -> int:
    return 1 if tokens <= CHUNK else tokens
