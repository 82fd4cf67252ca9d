"""The n-gram drafter: copies from the text itself, or from a text that is expected."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from localspec.drafters.copying import CopyingSource, Position
from localspec.retrieval.known_texts import LONGEST, KnownSuffix

PRIORS = {
    "greedy": (-0.74, 0.36, 1.11, 0.59),
    "sampled": (-1.12, 0.48, 0.95, 0.3),
}
"""Fitted like those of `localspec.drafters.draft_model`. Features: see `features_of`."""
_LEAD = 8
"""Tokens at the end of a prompt that precede a predicted text."""
_KEYS = (8, 3, 1)
"""Lengths of the suffixes by which occurrences are found, the rarest first."""
_EXAMINED = 24
"""Most occurrences to examine, the latest ones."""


class NgramIndex:
    """Occurrences in the committed tokens, which follow an optional predicted text."""

    def __init__(self) -> None:
        self._expected: list[int] = []
        self._restart()

    def expect(self, prompt: Sequence[int], prediction: Sequence[int]) -> None:
        """Set the predicted text after a prompt; an empty one removes it.

        The end of the prompt is put before it, so that it matches from the first token on."""
        expected = [*prompt[-_LEAD:], *prediction] if prediction else []
        if expected != self._expected:
            self._expected = expected
            self._restart()

    def sync(self, context: Sequence[int]) -> None:
        """Index the new tokens of a text that continues the indexed one."""
        self._extend(context[len(self._tokens) - len(self._expected) :])

    def begin(self, context: Sequence[int]) -> None:
        """Begin a generation: restart unless `context` continues the indexed text."""
        known = self._tokens[len(self._expected) :]
        if list(context[: len(known)]) != known:
            self._restart()
        self.sync(context)

    def _restart(self) -> None:
        self._tokens: list[int] = []
        # Positions of last tokens, by suffix. Each has a token after it.
        self._places: dict[tuple[int, ...], list[int]] = {}
        self._extend(self._expected)

    def _extend(self, tokens: Sequence[int]) -> None:
        known, places = self._tokens, self._places
        begin = max(0, len(known) - 1)  # of the tokens that get a follower now
        known += tokens
        for size in _KEYS:
            start = max(0, begin - size + 1)
            suffixes = zip(*(known[start + i : -1] for i in range(size)), strict=False)
            for last, suffix in enumerate(suffixes, start + size - 1):
                places.setdefault(suffix, []).append(last)

    def following(self, places: Sequence[int], ahead: int) -> list[int]:
        tokens, last = self._tokens, len(self._tokens) - ahead
        return [tokens[place + ahead] if place < last else -1 for place in places]

    def longest(self, ending: Sequence[int]) -> Iterator[KnownSuffix]:
        """See `localspec.retrieval.known_texts.KnownTexts`."""
        tokens, total, most = self._tokens, 0, min(LONGEST, len(ending))
        for size in _KEYS:
            found = self._places.get((*ending[-size:],), [])[: -1 - _EXAMINED : -1]
            suffixes = list[tuple[int, list[int]]]()
            for length in range(min(size, most), most + 1):
                before = ending[-1 - length] if length < most else -1
                longer = [p for p in found if tokens[p - length] == before and p >= length]
                if len(longer) < len(found):
                    suffixes.append((length, found))
                if not longer:
                    break
                found = longer
            for length, found in reversed(suffixes):
                if len(found) > total:
                    total = len(found)
                    yield KnownSuffix(self, length, total, found)


class NgramSource(CopyingSource):
    """Copies from the text itself. The index is shared by all sources that search it."""

    name = "ngram"
    priors: Mapping[str, tuple[float, ...]] = PRIORS

    def __init__(self, index: NgramIndex) -> None:
        self.texts = self._index = index

    def begin(self, prompt: Sequence[int]) -> None:
        self._index.begin(prompt)
        super().begin(prompt)

    def position_after(self, context: Sequence[int], streak: int) -> Position:
        # The index is updated on demand only, not in steps without planning.
        self._index.sync(context)
        return super().position_after(context, streak)
