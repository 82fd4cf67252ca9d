"""A draft model whose vocabulary differs from the target's."""

import math
from collections.abc import Sequence

from localspec.drafters.draft_model import DraftModel
from localspec.drafters.mapped_cache import MappedCache


class HeterogeneousDraftModel(DraftModel):
    """A `DraftModel` with another vocabulary, through a `MappedCache`.

    On the shared tokens (TLI) a row costs one pass. Through text (SLEM), target tokens that the
    draft model lacks can be drafted too, in further passes. "auto" decides before each answer, by
    how often the written token was right when the shared one was wrong. Sampled drafts are drawn,
    but the written token is chosen (q = 1) if the draft model lacks many tokens.

    `vocabulary`: size of the target's. `way`: "text", "shared", or "auto".
    """

    cache: MappedCache
    WORTHWHILE = 0.04
    """Share of tokens that drafting through text has to gain, to pay for its passes."""
    FEW = 0.25
    """Minimum share of missing tokens for which written ones are chosen, not drawn."""
    RIGHT = 0.6
    """Prior for the share of correct written tokens."""
    PRIOR = 64
    """Weight of this prior, and of the sample, in rows."""

    def __init__(self, cache: MappedCache, vocabulary: int, *, way: str = "auto") -> None:
        super().__init__(cache, vocabulary, window=None)
        self._way = way
        self._lacks = 1.0 - cache.mapping.shared_part(cache.mapping.sample)
        self._compared = self._won = 0
        cache.by_text = self._by_text()

    @property
    def credit(self) -> str:
        return f"{self.name}:text" if self.cache.by_text else f"{self.name}:shared"

    @property
    def summary(self) -> str:
        shared = math.floor(100 * self.cache.mapping.shared)
        way = "through text" if self.cache.by_text else "on the shared ones"
        return f"different vocabulary: {shared}% of tokens shared, drafting {way}"

    def draws(self, *, greedy: bool) -> bool:
        cache = self.cache
        cache.by_text = self._by_text()
        chooses = cache.by_text and self._lacks >= self.FEW
        cache.chosen = greedy or chooses
        return not chooses

    def begin(self, prompt: Sequence[int]) -> None:
        self.cache.proposed.clear()  # only committed tokens can be compared
        # The prompt is more representative than the sample.
        known = min(1.0, len(prompt) / self.PRIOR / 4)
        lacks = 1.0 - self.cache.mapping.shared_part(prompt)
        self._lacks += known * (lacks - self._lacks)
        super().begin(prompt)

    def sync(self, context: Sequence[int]) -> None:
        self._compare(context)
        super().sync(context)

    def _by_text(self) -> bool:
        if self._way != "auto":
            return self._way == "text"
        expected = self._lacks * self.RIGHT
        won = (self._won + expected * self.PRIOR) / (self._compared + self.PRIOR)
        return won >= self.WORTHWHILE

    def _compare(self, context: Sequence[int]) -> None:
        """Count whether the shared or the written token was committed."""
        cache = self.cache
        held, at = cache.tokens, self._agreed
        for place in sorted(cache.proposed):
            if place >= len(context) or list(held[at:place]) != list(context[at:place]):
                break
            at = max(at, place)
            shared, written = cache.proposed.pop(place)
            if written >= 0:
                self._compared += 1
                committed = context[place]
                self._won += int(written == committed) - int(shared == committed)
