"""What one generation knows: the tokens so far, how they are picked, and when to stop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from localspec.decoding.distribution import Distribution, Probabilities
from localspec.decoding.occurrences import NONE, Occurrences
from localspec.decoding.random_source import RandomSource
from localspec.decoding.sampling import Constraint, Sampler
from localspec.typed import fit


@dataclass(frozen=True, slots=True)
class ContextShift:
    """What leaves a full context: llama.cpp's context shift (`n_keep`, `n_discard`). What is left
    is prefilled again as a text of its own.

    Attributes:
        keep: tokens at the beginning that stay; -1 for all of the prompt.
        discard: tokens behind them that go; 0 for half of what there is.
    """

    LEAST = 4
    """Tokens behind what is kept, at least."""

    keep: int = 0
    discard: int = 0

    def __post_init__(self) -> None:
        fit(self)

    def gone(self, tokens: int, prompt: int) -> slice:
        """The part of `tokens` tokens, of which `prompt` are the prompt's, that leaves: at least
        one, never the last."""
        keep = max(0, min(prompt if self.keep < 0 else self.keep, tokens - self.LEAST))
        behind = tokens - keep
        return slice(keep, keep + max(1, min(self.discard or behind // 2, behind - 1)))


class Session:
    """The state that plan, draft, verify and accept share while one answer is generated.

    Attributes:
        context: every committed token, prompt first. Its last one is in no KV cache yet: the next
            pass begins with it.
        prompt_length: how many of them came with the prompt, or were left by a shift.
        dropped: how many tokens shifts took out of it.
        coupled: whether drafters draw with the noise of the target's own token; set by `speculate`.
        constraint: the grammar at the end of `context`, or None.
        limit: `context` may grow to this many tokens.
        ends: whether a token ends the generation by itself.
        logprobs: alternatives in `Step.logprobs`; None for no log-probabilities.
        finish: None while the generation goes on, "stop" after an end-of-generation token or a
            complete stop string, "length" at the limit.
    """

    def __init__(
        self,
        prompt: Sequence[int],
        sampler: Sampler,
        random: RandomSource,
        *,
        limit: int,
        ends: Callable[[int], bool],
        completes: Callable[[int], bool] = lambda token: False,
        constraint: Constraint | None = None,
        logprobs: int | None = None,
        as_sampled: bool = False,
        shift: ContextShift | None = None,
        capacity: int = 0,
    ) -> None:
        """`limit`: of prompt and answer together, of which `capacity` fit into the context at a
        time (0 for all). `completes`: called once with each committed token in order, whether the
        text of the answer is complete with it."""
        self.context = list(prompt)
        self.prompt_length = self._asked = len(self.context)
        self.dropped = 0
        self._shift, self._capacity, self._longest = shift, capacity, limit
        self.sampler = sampler
        self.random = random
        self.coupled = False
        self.constraint = constraint
        self.limit = min(limit, capacity or limit)
        self.logprobs, self.as_sampled = logprobs, as_sampled
        self.finish: str | None = None
        self.ends, self._completes = ends, completes
        self._window = sampler.window(self.context)

    @property
    def at_prompt(self) -> bool:
        return len(self.context) == self.prompt_length

    @property
    def room(self) -> int:
        return self.limit - len(self.context)

    @property
    def position(self) -> int:
        """Tokens before the next one, shifted ones included: the place of its noise."""
        return len(self.context) + self.dropped

    def propose(self, distribution: Distribution, depth: int) -> int:
        if self.coupled:
            return self.random.draw(distribution, self.position + depth)
        return self.random.propose(distribution, self.position, depth)

    def race(self, distribution: Distribution, depth: int) -> Probabilities:
        assert self.coupled, "only drafters that share the noise draw with it"
        return self.random.race(distribution, self.position + depth)

    def recent(self, path: Sequence[int] = ()) -> Occurrences:
        return NONE if self._window is None else self._window.after(path)

    def extend(self, tokens: list[int], constraint: Constraint | None) -> list[int]:
        """Commit the tokens of one step up to the first that ends the generation; return those.

        Args:
            tokens: accepted drafts and the target's own token after them, at least one.
            constraint: the grammar behind the last of them (unused when they are cut short).
        """
        room, ends, completes = self.limit - len(self.context), self.ends, self._completes
        kept = tokens if len(tokens) <= room else tokens[:room]
        for i, token in enumerate(kept):
            if completes(token) or ends(token):
                kept = kept[: i + 1]
                self.finish = "stop"
                break
        self.context += kept
        self.constraint = constraint
        if len(kept) >= room and self.finish is None:
            self.finish = "length"
        return kept

    def shift(self) -> bool:
        """Make room in a full context, if wanted and more may be generated; whether it did."""
        longest = self._longest - self.dropped
        if self._shift is None or self.finish != "length" or longest <= len(self.context):
            return False
        gone = self._shift.gone(len(self.context), self._asked)
        del self.context[gone]
        count = gone.stop - gone.start
        self.dropped += count
        self.limit = min(self._capacity, longest - count)
        self.prompt_length = len(self.context)
        self._window = self.sampler.window(self.context)
        self.finish = None
        return True
