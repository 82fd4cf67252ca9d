"""Conversations that come back: what was read of them, kept in the cache folder by itself.

When a prompt is about to push a conversation out of the caches, and when the engine is closed, what
they hold is written into a file. When a prompt begins like one of the files, that is read instead
of decoding the prompt.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from localspec.errors import SessionError
from localspec.llama.target import shared_prefix
from localspec.sessions.cache_states import CacheStates
from localspec.sessions.conversation_files import LEAST, ConversationFiles

logger = logging.getLogger("localspec.sessions")


class PromptCache:
    """The files of an engine that answers one prompt at a time.

    Args:
        states: the engine's caches.
        files: where they are kept.
    """

    def __init__(self, states: CacheStates, files: ConversationFiles) -> None:
        self._states, self._files = states, files
        self._kept: list[int] = []

    def recall(self, prompt: Sequence[int]) -> list[str]:
        """Make the caches hold as much of a prompt as some file does, and keep what they hold now.

        Returns:
            What the user should know, sentences.
        """
        held = self._states.tokens
        here = shared_prefix(held, prompt)
        best = self._files.best(prompt, here, self._states.capacity)
        notes = []
        if best is not None or len(held) - here >= LEAST:
            notes += self.keep()
        if best is not None:
            notes += self._files.read(best, self._states)
            self._kept = list(self._states.tokens)
        return notes

    def keep(self) -> list[str]:
        """Write what the caches hold, if it is worth that and not written yet.

        Returns:
            What the user should know, sentences.
        """
        tokens = list(self._states.tokens)
        if len(tokens) < LEAST or tokens == self._kept:
            return []
        try:
            self._files.write(*self._states.collect())
        except (SessionError, OSError) as error:
            logger.warning("a conversation is not kept: %s", error)
            return [f"What was read of the last conversation is not kept: {error}"]
        self._kept = tokens
        return []
