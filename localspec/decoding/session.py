"""What one generation knows: the tokens so far, how they are picked, and when to stop."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from localspec.decoding.occurrences import NONE, Occurrences
from localspec.decoding.random_source import RandomSource
from localspec.decoding.sampling import Constraint, Sampler


class Session:
    """The state that plan, draft, verify and accept share while one answer is generated.

    Attributes:
        context: every committed token, prompt first. Its last one is in no KV cache yet: the
            next pass begins with it.
        prompt_length: how many of them came with the prompt.
        sampler: turns rows of logits into distributions, for target and drafters alike.
        random: the source of chance.
        constraint: the grammar at the end of `context`, or None.
        limit: `context` may grow to this many tokens.
        ends: whether a token ends the generation.
        logprobs: how many of the target's most probable tokens every step tells with each of its
            own; None where none are asked for.
        finish: why the generation ended, None while it goes on: "stop" after an
            end-of-generation token, "length" at the limit.
    """

    __slots__ = (
        "_window",
        "constraint",
        "context",
        "ends",
        "finish",
        "limit",
        "logprobs",
        "prompt_length",
        "random",
        "sampler",
    )

    def __init__(
        self,
        prompt: Sequence[int],
        sampler: Sampler,
        random: RandomSource,
        *,
        limit: int,
        ends: Callable[[int], bool],
        constraint: Constraint | None = None,
        logprobs: int | None = None,
    ) -> None:
        self.context = list(prompt)
        self.prompt_length = len(self.context)
        self.sampler = sampler
        self.random = random
        self.constraint = constraint
        self.limit = limit
        self.logprobs = logprobs
        self.finish: str | None = None
        self.ends = ends
        self._window = sampler.window(self.context)

    @property
    def at_prompt(self) -> bool:
        """Whether nothing is generated yet: the first token comes with the prompt's own pass."""
        return len(self.context) == self.prompt_length

    @property
    def room(self) -> int:
        """Tokens that may still be generated."""
        return self.limit - len(self.context)

    def recent(self, path: Sequence[int] = ()) -> Occurrences:
        """What penalties look at behind the context and such a path."""
        return NONE if self._window is None else self._window.behind(path)

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
