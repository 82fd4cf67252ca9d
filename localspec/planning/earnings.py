"""What answers of a pair were like: how long they were, and what a draft model earned in them.

Both say what it may earn in the next one, before it has read any of its prompt: see
`localspec.planning.prompt_reading`.
"""

from __future__ import annotations

import math
from typing import Any


class AnswerLengths:
    """How long answers are; several may be under way.

    Attributes:
        answers, tokens: that were begun, and that they have so far; older ones count less.
    """

    KEPT = 0.9
    """Weight of an answer's length, for each one that was begun after it."""

    def __init__(self, answers: float = 0.0, tokens: float = 0.0) -> None:
        self.answers, self.tokens = _sound(answers), _sound(tokens)

    @property
    def usual(self) -> float:
        """Tokens of an answer; without end while none is known."""
        return self.tokens / self.answers if self.tokens else math.inf

    def begin(self) -> None:
        """An answer more."""
        self.answers = self.answers * self.KEPT + 1.0
        self.tokens *= self.KEPT

    def said(self, tokens: int) -> None:
        """One goes on."""
        self.tokens += tokens


class Earnings:
    """What a model source earned, a token of the answers that it took part in.

    Attributes:
        tokens: of these answers, the latest ones.
        passes: that it saved in them, in plain passes of the target: its own passes and those over
            several tokens are taken off. Less than 0 where it lost.
    """

    LATEST = 1000.0
    DOUBT = 64.0
    """So many tokens count as if it had earned there what the best drafts would."""
    LEFT_OUT = 0.9
    """Weight of what is known, for each answer that it was left out of: texts change, and it is
    tried again in the end."""

    def __init__(self, tokens: float = 0.0, passes: float = 0.0) -> None:
        self.tokens, self.passes = _sound(tokens), float(passes)
        if not math.isfinite(self.passes):
            raise ValueError("a number out of its range")

    def expected(self, best: float) -> float:
        """Plain passes that it may save, a token.

        Args:
            best: those that drafts would save that are right as often as any.
        """
        return max(0.0, (self.passes + self.DOUBT * best) / (self.tokens + self.DOUBT))

    def said(self, tokens: int) -> None:
        """An answer goes on."""
        self.tokens += tokens
        if self.tokens > self.LATEST:
            self._weigh(self.LATEST / self.tokens)

    def left_out(self) -> None:
        """An answer is begun without it."""
        self._weigh(self.LEFT_OUT)

    def _weigh(self, share: float) -> None:
        self.tokens *= share
        self.passes *= share


def _sound(number: Any) -> float:
    """A stored number.

    Raises:
        ValueError: it cannot be.
    """
    found = float(number)
    if not 0.0 <= found < math.inf:
        raise ValueError("a number out of its range")
    return found
