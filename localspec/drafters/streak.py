"""How many tokens in a row, up to now, a lookup source said right."""

from __future__ import annotations

from collections.abc import Sequence


class Streak:
    """Compares what a source said first at each place of the text with what came.

    Attributes:
        length: tokens in a row.
    """

    __slots__ = ("_at", "_said", "length")

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """A new text."""
        self.length = 0
        self._said: list[int] | None = None
        self._at = -1

    def at(self, count: int) -> None:
        """The committed text has so many tokens."""
        if self._at != count:
            self._said, self._at = None, count

    def saying(self) -> list[int]:
        """Where to write down what is said behind the committed text; it counts the first time."""
        said: list[int] = []
        if self._said is None:
            self._said = said
        return said

    def committed(self, context: Sequence[int]) -> None:
        """What came."""
        for said, token in zip(self._said or (), context[self._at :], strict=False):
            if said != token:
                self.length = 0
                break
            self.length += 1
        self._said, self._at = None, -1
