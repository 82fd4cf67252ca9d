"""What one generation knows: the tokens so far, how they are picked, and when to stop."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from localspec.decoding.random_source import Dice
from localspec.decoding.sampling import Constraint, Sampler


class Session:
    """The state that plan, draft, verify and accept share while one answer is generated.

    Attributes:
        context: every committed token, prompt first. Its last one is in no KV cache yet: the
            next pass begins with it.
        prompt_length: how many of them came with the prompt.
        sampler: turns rows of logits into distributions, for target and drafters alike.
        dice: the source of chance.
        constraint: the grammar at the end of `context`, or None.
        limit: `context` may grow to this many tokens.
        ends: whether a token ends the generation.
        finish: why the generation ended, None while it goes on: "stop" after an
            end-of-generation token, "length" at the limit.
    """

    __slots__ = (
        "constraint",
        "context",
        "dice",
        "ends",
        "finish",
        "limit",
        "prompt_length",
        "sampler",
    )

    def __init__(
        self,
        prompt: Sequence[int],
        sampler: Sampler,
        dice: Dice,
        *,
        limit: int,
        ends: Callable[[int], bool],
        constraint: Constraint | None = None,
    ) -> None:
        self.context = list(prompt)
        self.prompt_length = len(self.context)
        self.sampler = sampler
        self.dice = dice
        self.constraint = constraint
        self.limit = limit
        self.finish: str | None = None
        self.ends = ends

    @property
    def room(self) -> int:
        """Tokens that may still be generated."""
        return self.limit - len(self.context)

    def extend(self, tokens: list[int], constraint: Constraint | None) -> list[int]:
        """Commit the tokens of one step up to the first that ends the generation; return those.

        Args:
            tokens: accepted drafts and the target's own token after them, at least one.
            constraint: the grammar behind the last of them (unused when they are cut short).
        """
        kept = tokens[: self.room]
        for i, token in enumerate(kept):
            if self.ends(token):
                kept = kept[: i + 1]
                self.finish = "stop"
                break
        self.context += kept
        self.constraint = constraint
        if self.finish is None and self.room <= 0:
            self.finish = "length"
        return kept
