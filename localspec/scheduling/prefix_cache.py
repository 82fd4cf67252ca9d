"""Prefix cache: texts of earlier answers whose cells are kept for reuse."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from localspec.llama.context import Context
from localspec.llama.shared_context import SharedContext
from localspec.llama.target import shared_prefix
from localspec.sessions.conversation_files import ConversationFiles


@dataclass(slots=True, eq=False)
class _Text:
    """A kept text's sequences in both caches; empty while it is free."""

    target: Context
    draft: Context | None

    @property
    def drafted(self) -> list[int]:
        return [] if self.draft is None else self.draft.tokens


class PrefixCache:
    """Kept texts, the least recently used one first. A text shares cells with the answer it comes
    from, and with answers that have a common prefix.

    Attributes:
        disk: where dropped texts are written to and restored from, or None.
    """

    def __init__(self, target: SharedContext, draft: SharedContext | None) -> None:
        def of(shared: SharedContext, number: int) -> Context:
            return Context.over(shared, shared.kept_sequences(number), make_room=self.drop_oldest)

        self._texts: list[_Text] = []
        self._free = [
            _Text(of(target, number), None if draft is None else of(draft, number))
            for number in range(target.kept)
        ]
        self.disk: ConversationFiles | None = None

    def keep(self, cache: Context, draft: Context | None) -> None:
        """Keep the text of an answer, in place of any text that it continues."""
        tokens = cache.tokens
        drafted = [] if draft is None else draft.tokens
        if not tokens:
            return
        for text in [*self._texts]:
            shared = shared_prefix(text.target.tokens, tokens)
            if shared == len(tokens) and len(drafted) <= len(text.drafted):
                self._mark_used(text)  # all of it is kept already
                return
            if shared == len(text.target.tokens):
                self._drop(text)
        text = self._take_free()
        text.target.begin_with(cache.sequences.first, tokens)
        if text.draft is not None and draft is not None and drafted:
            text.draft.begin_with(draft.sequences.first, drafted)
        self._texts.append(text)

    def recall(self, prompt: Sequence[int], room: int, *, drafted: bool) -> list[str]:
        """Restore a prefix of a prompt from disk, if that pays and fits into `room` tokens.

        `drafted`: whether prompts can share the draft model's cache as well. Returns notices."""
        if self.disk is None or (path := self.disk.best(prompt, self.known(prompt), room)) is None:
            return []
        text = self._take_free()
        states = self.disk.states(text.target, text.draft if drafted else None)
        notes = self.disk.read(path, states)
        self._texts.append(text)
        if not text.target.tokens:
            self._drop(text)
        return notes

    def begin(self, prompt: Sequence[int], cache: Context, draft: Context | None) -> int:
        """Make empty caches share the longest kept prefix of a prompt without its last token;
        returns its length in the target's cache."""
        length, text = self._best(prompt, lambda text: text.target.tokens)
        if text is not None:
            self._mark_used(text)
            cache.begin_with(text.target.sequences.first, prompt[:length])
        if draft is not None:
            drafted, text = self._best(prompt, lambda text: text.drafted)
            if text is not None and text.draft is not None:
                draft.begin_with(text.draft.sequences.first, prompt[:drafted])
        return length

    def known(self, prompt: Sequence[int]) -> int:
        """The number of tokens of a prompt that are kept."""
        return self._best(prompt, lambda text: text.target.tokens)[0]

    def drop_oldest(self) -> bool:
        """Evict the least recently used text; False if nothing is kept."""
        if not self._texts:
            return False
        text = self._texts[0]
        if self.disk is not None:
            self.disk.keep(self.disk.states(text.target, text.draft))
        self._drop(text)
        return True

    def clear(self) -> int:
        """Drop all texts; returns how many tokens they held."""
        count = sum(len(text.target.tokens) for text in self._texts)
        for text in [*self._texts]:
            self._drop(text)
        return count

    def close(self) -> None:
        """Write the kept texts to disk, before the caches are freed."""
        if self.disk is not None:
            while self.drop_oldest():
                pass
            self.disk.close()

    def _take_free(self) -> _Text:
        """Take an empty text from the free ones."""
        if not self._free:
            self.drop_oldest()
        return self._free.pop()

    def _best(
        self, prompt: Sequence[int], tokens: Callable[[_Text], list[int]]
    ) -> tuple[int, _Text | None]:
        best, found = 0, None
        for text in reversed(self._texts):  # the latest among equals, as older ones may be evicted
            shared = min(shared_prefix(tokens(text), prompt), len(prompt) - 1)
            if shared > best:
                best, found = shared, text
        return best, found

    def _mark_used(self, text: _Text) -> None:
        self._texts.remove(text)
        self._texts.append(text)

    def _drop(self, text: _Text) -> None:
        self._texts.remove(text)
        text.target.clear()
        if text.draft is not None:
            text.draft.clear()
        self._free.append(text)
