"""Cache states of earlier conversations, found by prefix, in memory or in the cache folder; the
least recently used go first."""

from __future__ import annotations

import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from localspec import paths
from localspec.cgroups import available_memory
from localspec.errors import SessionError
from localspec.files import remove_abandoned
from localspec.identity import fingerprint
from localspec.llama.context import Context
from localspec.llama.native_context import CacheFull
from localspec.sessions.cache_states import TARGET, CacheStates
from localspec.sessions.session_file import Part, SessionFile, discard, write

LEAST = 256
"""Least tokens of a kept conversation: fewer are prefilled as fast."""
SHARE = 4  # of the memory that is free or holds conversations: one part

logger = logging.getLogger("localspec.sessions")
Kept = TypeVar("Kept")


class Conversations(ABC, Generic[Kept]):
    """Those of one pair. `identity`: all that the states depend on; `recurrent`: whether the memory
    cannot be truncated, so that a prompt has to begin with all tokens of a conversation; `lasting`:
    whether they outlive the process; `apart`: whether files are written in another thread, so that
    concurrent answers do not wait."""

    lasting = apart = False

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

    def close(self) -> None:
        """Wait for pending writes."""


@dataclass(frozen=True, slots=True, eq=False)
class _States:
    facts: dict[str, Any]
    parts: dict[str, Part]


class ConversationMemory(Conversations[_States]):
    """In main memory, so that requests for titles and the like cost a chat no second prefill."""

    def __init__(self, identity: Mapping[str, Any], *, recurrent: bool) -> None:
        super().__init__(identity, recurrent=recurrent)
        self._kept: list[_States] = []

    def _entries(self) -> Iterator[tuple[_States, Part]]:
        return ((kept, kept.parts[f"{TARGET}.tokens"]) for kept in [*self._kept])

    def keep(self, states: CacheStates) -> list[str]:
        if len(states.target.tokens) < LEAST:
            return []
        try:
            kept = _States(*states.collect())
        except SessionError as error:  # memory is short
            logger.info("a conversation is not kept: %s", error)
            self._kept.clear()
            return []
        for earlier in self._replaced(kept.parts[f"{TARGET}.tokens"]):
            self._kept.remove(earlier)
        self._kept.append(kept)
        while self._kept and (size := self._size()) > (available_memory()[0] + size) // SHARE:
            del self._kept[0]
        return []

    def _size(self) -> int:
        return sum(part.nbytes for kept in self._kept for part in kept.parts.values())

    def read(self, kept: _States, states: CacheStates) -> list[str]:
        if kept in self._kept:
            self._kept.remove(kept)  # the caches hold it now
        with suppress(CacheFull):
            return states.restore(kept.facts, kept.parts.__getitem__)
        return []


class ConversationFiles(Conversations[Path]):
    """The files of one pair, in a folder that all engines share: at most `size` bytes."""

    lasting = True

    def __init__(self, identity: Mapping[str, Any], size: int, *, recurrent: bool) -> None:
        super().__init__(identity, recurrent=recurrent)
        self._size = size
        self._name = fingerprint(dict(identity))[:16]
        self._known: dict[Path, Part] = {}
        self._writer = ThreadPoolExecutor(1, "localspec-texts")

    def close(self) -> None:
        self._writer.shutdown()

    def keep(self, states: CacheStates) -> list[str]:
        tokens = list(states.target.tokens)
        if len(tokens) < LEAST:
            return []
        path = folder() / f"{self._name}-{fingerprint({'tokens': tokens})[:16]}.session"
        with suppress(OSError):
            os.utime(path)
            return []

        def work() -> None:
            write = partial(self._write, path, *states.collect())
            if self.apart:
                self._writer.submit(_try_writing, write)
            else:
                write()

        return _try_writing(work)

    def _write(self, path: Path, facts: dict[str, Any], parts: dict[str, Part]) -> None:
        """Write a file, and remove earlier ones of the same conversation."""
        size = sum(part.nbytes for part in parts.values()) + (1 << 16)
        if size > self._size:
            logger.info("%d MB of one conversation exceed the limit of stored ones", size >> 20)
            return
        for earlier in self._replaced(parts[f"{TARGET}.tokens"]):
            discard(earlier)
        self._trim(self._size - size)
        write(path, facts, parts)

    def read(self, kept: Path, states: CacheStates) -> list[str]:
        """A damaged file is removed."""
        try:
            file = SessionFile(kept)
            notes = states.restore(file.facts, file.part)
            os.utime(kept)
        except (FileNotFoundError, CacheFull):  # removed by another process, or no room
            return []
        except (SessionError, OSError) as error:
            notes = [str(error)]
        if not notes:
            return []
        discard(kept)
        logger.warning("a stored conversation is prefilled again: %s", "; ".join(notes))
        return [f"A stored conversation is prefilled again: {'; '.join(notes)}."]

    def _entries(self) -> Iterator[tuple[Path, Part]]:
        """Yield files and their tokens; unusable ones are removed."""
        for path in sorted(folder().glob(f"{self._name}-*.session")):
            try:
                if path not in self._known:  # a name stands for fixed tokens
                    self._known[path] = np.array(SessionFile(path).part(f"{TARGET}.tokens"))
            except FileNotFoundError:
                continue
            except (SessionError, OSError) as error:
                logger.warning("%s is removed: %s", path, error)
                discard(path)
                continue
            yield path, self._known[path]

    def _trim(self, most: int) -> None:
        remove_abandoned(folder())
        found = []
        for path in folder().glob("*.session"):
            with suppress(OSError):
                status = path.stat()
                found.append((status.st_mtime_ns, status.st_size, path))
        total = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if total <= most:
                return
            discard(path)
            total -= size


def _try_writing(work: Callable[[], object]) -> list[str]:
    try:
        work()
    except (SessionError, OSError) as error:
        logger.warning("a conversation is not stored: %s", error)
        return [f"The last conversation's cache is not stored: {error}"]
    return []


def folder() -> Path:
    return paths.cache_folder() / "conversations"


def _shared(one: Part, other: Part) -> int:
    length = min(len(one), len(other))
    differing = np.flatnonzero(one[:length] != other[:length])
    return int(differing[0]) if len(differing) else length
