"""Cache states of earlier conversations, found by prefix; the least recently used go first."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from localspec.cgroups import available_memory
from localspec.errors import SessionError
from localspec.llama.context import Context
from localspec.llama.native_context import CacheFull
from localspec.sessions.cache_states import TARGET, CacheStates
from localspec.sessions.session_file import Part

LEAST = 256
"""Least tokens of a kept conversation: fewer are prefilled as fast."""
SHARE = 4  # of the memory that is free or holds conversations: one part

logger = logging.getLogger("localspec.sessions")
Kept = TypeVar("Kept")


class Conversations(ABC, Generic[Kept]):
    """Those of one pair.

    Args:
        identity: all that the states depend on.
        recurrent: whether the memory cannot be truncated, so that a prompt has to begin with all
            tokens of a conversation.

    Attributes:
        lasting: whether they outlive the process.
    """

    lasting = False

    def __init__(self, identity: Mapping[str, Any], *, recurrent: bool) -> None:
        self._identity, self._recurrent = identity, recurrent

    def states(self, target: Context, draft: Context | None) -> CacheStates:
        return CacheStates(target, draft, self._identity)

    def best(self, prompt: Sequence[int], here: int, capacity: int) -> Kept | None:
        """The one with the longest prefix of a prompt: at least LEAST tokens more than `here`, and
        at most `capacity` in all."""
        wanted = np.array(prompt, np.int32)
        best, most = None, here + LEAST - 1
        for kept, tokens in self._entries():
            shared = _shared(tokens, wanted)
            if self._recurrent and shared < len(tokens):
                continue
            if shared > most and len(tokens) <= capacity:
                best, most = kept, shared
        return best

    def _replaced(self, tokens: Part) -> Iterator[Kept]:
        """Those that are worthless beside a conversation that continues them."""
        worthless = 1 if self._recurrent else LEAST
        for kept, known in self._entries():
            if len(known) - _shared(known, tokens) < worthless:
                yield kept

    @abstractmethod
    def _entries(self) -> Iterator[tuple[Kept, Part]]:
        """Each, with its tokens."""

    @abstractmethod
    def keep(self, states: CacheStates) -> list[str]:
        """Store cache contents, if long enough and not stored yet; returns notices."""

    @abstractmethod
    def read(self, kept: Kept, states: CacheStates) -> list[str]:
        """Restore one into caches; returns notices."""

    def write_apart(self) -> None:
        """From now on, write in another thread, so that concurrent answers do not wait."""

    def close(self) -> None:
        """Wait for pending writes."""


@dataclass(frozen=True, slots=True, eq=False)
class _Copy:
    """In the form of a `SessionFile`."""

    facts: dict[str, Any]
    parts: dict[str, Part]

    def __contains__(self, name: str) -> bool:
        return name in self.parts

    def part(self, name: str) -> Part:
        return self.parts[name]


class ConversationMemory(Conversations[_Copy]):
    """In main memory, so that requests for titles and the like cost a chat no second prefill."""

    def __init__(self, identity: Mapping[str, Any], *, recurrent: bool) -> None:
        super().__init__(identity, recurrent=recurrent)
        self._kept: list[_Copy] = []

    def _entries(self) -> Iterator[tuple[_Copy, Part]]:
        return ((kept, kept.part(f"{TARGET}.tokens")) for kept in [*self._kept])

    def keep(self, states: CacheStates) -> list[str]:
        if len(states.target.tokens) < LEAST:
            return []
        try:
            kept = _Copy(*states.collect())
        except SessionError as error:  # memory is short
            logger.info("a conversation is not kept: %s", error)
            self._kept.clear()
            return []
        for earlier in self._replaced(kept.part(f"{TARGET}.tokens")):
            self._kept.remove(earlier)
        self._kept.append(kept)
        while self._kept and (size := self._size()) > (available_memory()[0] + size) // SHARE:
            del self._kept[0]
        return []

    def _size(self) -> int:
        return sum(part.nbytes for kept in self._kept for part in kept.parts.values())

    def read(self, kept: _Copy, states: CacheStates) -> list[str]:
        if kept in self._kept:
            self._kept.remove(kept)  # the caches hold it now
        with suppress(CacheFull):
            return states.restore(kept)
        return []


def _shared(one: Part, other: Part) -> int:
    length = min(len(one), len(other))
    differing = np.flatnonzero(one[:length] != other[:length])
    return int(differing[0]) if len(differing) else length
