"""Texts of earlier answers whose cells stay, so that an answer to come need not read them again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from localspec.llama.seat_cache import SeatCache
from localspec.llama.shared_context import SharedContext
from localspec.llama.target import shared_prefix


@dataclass(slots=True, eq=False)
class _Text:
    """`number` of its sequence, in both caches; its tokens there, oldest use first."""

    number: int
    tokens: list[int]
    drafted: list[int]


class KeptTexts:
    """The texts that are kept, the least recently used one first.

    A text takes no cells of its own: it shares those of the answer that it was, and answers that
    begin like it share them again. What does not fit any more is dropped, see `drop_oldest`.

    Args:
        target, draft: where their cells are.
    """

    def __init__(self, target: SharedContext, draft: SharedContext | None) -> None:
        self._target, self._draft = target, draft
        self._texts: list[_Text] = []
        self._free = list(range(target.kept))

    def __len__(self) -> int:
        return len(self._texts)

    def keep(self, cache: SeatCache, draft: SeatCache | None) -> None:
        """Keep what an answer holds. A text that it goes on from is not needed any more."""
        tokens = cache.tokens
        drafted = [] if draft is None else draft.tokens
        if not tokens:
            return
        for text in [*self._texts]:
            shared = shared_prefix(text.tokens, tokens)
            if shared == len(tokens) and len(drafted) <= len(text.drafted):
                self._used(text)  # all of it is known
                return
            if shared == len(text.tokens):
                self._drop(text)
        if not self._free:
            self._drop(self._texts[0])
        number = self._free.pop()
        self._target.share(cache.lot.first, self._target.kept_id(number), len(tokens))
        if self._draft is not None and draft is not None and drafted:
            self._draft.share(draft.lot.first, self._draft.kept_id(number), len(drafted))
        self._texts.append(_Text(number, [*tokens], [*drafted]))

    def begin(self, prompt: Sequence[int], cache: SeatCache, draft: SeatCache | None) -> int:
        """Let empty caches share what a prompt has in common with a kept text, but for its last
        token; returns how many tokens that is in the target's."""
        length, text = self._best(prompt, lambda text: text.tokens)
        if text is not None:
            self._used(text)
            cache.begin_with(self._target.kept_id(text.number), prompt[:length], text)
        if draft is not None and self._draft is not None:
            drafted, text = self._best(prompt, lambda text: text.drafted)
            if text is not None:
                draft.begin_with(self._draft.kept_id(text.number), prompt[:drafted], text)
        return length

    def known(self, prompt: Sequence[int]) -> int:
        """How many tokens of a prompt are kept."""
        return self._best(prompt, lambda text: text.tokens)[0]

    def drop_oldest(self) -> bool:
        """Free what was not used for longest; False if nothing is kept."""
        if not self._texts:
            return False
        self._drop(self._texts[0])
        return True

    def clear(self) -> int:
        """Drop all; returns how many tokens they had."""
        count = sum(len(text.tokens) for text in self._texts)
        while self.drop_oldest():
            pass
        return count

    def _best(
        self, prompt: Sequence[int], tokens: Callable[[_Text], list[int]]
    ) -> tuple[int, _Text | None]:
        best, found = 0, None
        for text in self._texts:
            shared = min(shared_prefix(tokens(text), prompt), len(prompt) - 1)
            if shared > best:
                best, found = shared, text
        return best, found

    def _used(self, text: _Text) -> None:
        self._texts.remove(text)
        self._texts.append(text)

    def _drop(self, text: _Text) -> None:
        self._texts.remove(text)
        self._target.drop(self._target.kept_id(text.number))
        if self._draft is not None:
            self._draft.drop(self._draft.kept_id(text.number))
        self._free.append(text.number)
