"""The state of one generation: its tokens, its sampler, and when it stops."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from localspec.decoding.distribution import Distribution, Probabilities
from localspec.decoding.occurrences import NONE, Occurrences
from localspec.decoding.random_source import SeededRandom
from localspec.decoding.sampling import Constraint, Sampler
from localspec.typed import convert_fields


@dataclass(frozen=True, slots=True)
class ContextShift:
    """Which tokens to drop from a full context: llama.cpp's context shift (`n_keep`, `n_discard`).
    The remaining text is prefilled again.

    Attributes:
        keep: tokens kept at the beginning; -1 for all of the prompt.
        discard: tokens dropped after them; 0 for half of the rest.
    """

    LEAST = 4
    """Least number of tokens after the kept ones."""

    keep: int = 0
    discard: int = 0

    def __post_init__(self) -> None:
        convert_fields(self)

    def removed_slice(self, tokens: int, prompt: int) -> slice:
        """The part to drop of `tokens` tokens, of which `prompt` are the prompt's: at least one,
        never the last."""
        keep = max(0, min(prompt if self.keep < 0 else self.keep, tokens - self.LEAST))
        rest = tokens - keep
        return slice(keep, keep + max(1, min(self.discard or rest // 2, rest - 1)))


class Session:
    """The state that plan, draft, verify and accept share while one answer is generated.

    Attributes:
        context: every committed token, prompt first. The last one is not cached yet, because
            the next pass begins with it.
        prompt_length: number of tokens of the prompt or, after a shift, of the remaining text.
        dropped: number of tokens removed by shifts.
        coupled: whether drafters draw with the noise of the target's own token; set by `speculate`.
        constraint: the grammar at the end of `context`, or None.
        limit: maximum length of `context`.
        ends: whether a token is an end-of-generation token.
        logprobs: number of alternatives in `Step.logprobs`; None for no log-probabilities.
        finish: None during the generation, "stop" after an end-of-generation token or a complete
            stop string, "length" at the limit.
    """

    def __init__(
        self,
        prompt: Sequence[int],
        sampler: Sampler,
        random: SeededRandom,
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
        time (0 for all). `completes`: called once for each committed token, in order; returns
        whether it completes the answer."""
        self.context = list(prompt)
        self.prompt_length = self._original_prompt = len(self.context)
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
        """Number of tokens before the next one, dropped ones included; selects its noise."""
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
        """Commit the tokens of one step up to the first that ends the generation; returns those.

        Args:
            tokens: accepted drafts and the target's own token after them, at least one.
            constraint: the grammar after the last of them (unused if they are cut short).
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
        """Shift a full context if enabled and more may be generated; returns whether it did."""
        longest = self._longest - self.dropped
        if self._shift is None or self.finish != "length" or longest <= len(self.context):
            return False
        removed = self._shift.removed_slice(len(self.context), self._original_prompt)
        del self.context[removed]
        count = removed.stop - removed.start
        self.dropped += count
        self.limit = min(self._capacity, longest - count)
        self.prompt_length = len(self.context)
        self._window = self.sampler.window(self.context)
        self.finish = None
        return True
