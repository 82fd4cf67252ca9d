"""An explore-then-commit trial (Lattimore & Szepesvári 2020, chapter 6) of two ways to do the same
thing, repeated now and then."""

from __future__ import annotations

STEPS = 12
"""Of one turn."""
TURNS = 3
"""Of each way before they are compared."""
AGAIN = 512
"""Steps after which they are compared anew."""
MARGIN = 1.02
"""The new way has to be so much faster."""


class ExploreThenCommit:
    """Whether to do it the new way at the next step."""

    def __init__(self, *, decided: bool | None = None) -> None:
        """`decided`: the outcome, if it is not to be tried."""
        self._tokens = [0, 0]
        self._seconds = [0.0, 0.0]
        self._steps = 0
        self._decided = decided
        self._tried = decided is None

    @property
    def new_way(self) -> bool:
        """What the next step should do."""
        if self._decided is not None:
            return self._decided
        return bool(self._steps // STEPS % 2)

    def observe(self, tokens: int, seconds: float) -> None:
        """Count one step done as `new_way` said."""
        if not self._tried:
            return
        way = int(self.new_way)
        self._tokens[way] += tokens
        self._seconds[way] += seconds
        self._steps += 1
        if self._decided is None and self._steps == 2 * STEPS * TURNS:
            old, new = (
                count / max(spent, 1e-9)
                for count, spent in zip(self._tokens, self._seconds, strict=True)
            )
            self._decided = new > MARGIN * old
            self._steps = 0
        elif self._decided is not None and self._steps == AGAIN:
            self._tokens, self._seconds = [0, 0], [0.0, 0.0]
            self._steps, self._decided = 0, None
