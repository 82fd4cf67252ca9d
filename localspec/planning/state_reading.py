"""When a source that drafts from the target's hidden states is told them.

Having them copied out of every pass, and taking them in, is own work that shows where a pass takes
less than a millisecond. So a source that was not asked for a while is told nothing; before it is
asked or tried again it is told those of some tokens, and drafts from these. It sees less of the
text then, as after any text that it was not told of.
"""

from __future__ import annotations


class StateReading:
    """Of one source.

    Attributes:
        told: whether it is told states.
    """

    REST = 32
    """Steps without being asked behind which it is told no more."""
    TRIED = 4
    """So many are left behind a trial: it is asked soon then, or not."""
    LEAD = 12
    """Steps that it is told of before it is asked again."""

    def __init__(self) -> None:
        self.told = True
        self._left = self.REST
        self._lead = 0

    def ready(self) -> bool:
        """Whether it can be asked; if not, it is told from now on, and can be soon."""
        if not self.told:
            self.told, self._lead = True, self.LEAD
        return not self._lead

    def asked(self) -> None:
        """In the step that is over."""
        self._left = self.REST

    def tried(self) -> None:
        """In the step that is over, on tokens that were there."""
        self._left = self.TRIED

    def unasked(self) -> None:
        """In the step that is over."""
        if self._lead:
            self._lead -= 1
            self._left = self.REST
        elif self._left:
            self._left -= 1
            self.told = self._left > 0

    def unread(self, count: int) -> int:
        """Of so many tokens that it has not read, those that it would have to: of what it was not
        told it reads nothing."""
        return count if self.told and not self._lead else min(count, self.LEAD)
