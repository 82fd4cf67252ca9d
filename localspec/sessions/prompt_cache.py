"""Conversations that come back: what was read of them, kept in the cache folder by itself.

When a prompt is about to push a conversation out of the caches, and when the engine is closed, what
they hold is written into a file. When a prompt begins like one of the files, that is read instead
of decoding the prompt. The files that were not used for longest are removed where all of them
together would take more than their share of the disk.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from localspec import paths
from localspec.errors import SessionError
from localspec.files import remove_abandoned
from localspec.identity import fingerprint
from localspec.sessions.cache_states import TARGET, CacheStates
from localspec.sessions.session_file import Part, SessionFile, discard, write

LEAST = 256
"""Tokens that are worth a file: fewer are decoded as fast as a file is found."""

logger = logging.getLogger("localspec.sessions")


class PromptCache:
    """The files of one engine, in a folder that all engines share.

    Args:
        states: the engine's caches.
        size: bytes that all files may have together.
        recurrent: the memory cannot be cut back: only a file all of which the prompt begins with
            serves.
    """

    def __init__(self, states: CacheStates, size: int, *, recurrent: bool) -> None:
        self._states, self._size, self._recurrent = states, size, recurrent
        self._name = fingerprint(states.identity)[:16]
        self._kept: list[int] = []
        self._known: dict[Path, Part] = {}

    def recall(self, prompt: Sequence[int]) -> list[str]:
        """Make the caches hold as much of a prompt as some file does, and keep what they hold now.

        Returns:
            What the user should know, sentences.
        """
        held = self._states.tokens
        wanted = np.array(prompt, np.int32)
        here = _shared(np.array(held, np.int32), wanted)
        best, most = None, here + LEAST - 1
        for path, tokens in self._entries():
            shared = _shared(tokens, wanted)
            if self._recurrent and shared < len(tokens):
                continue
            if shared > most and len(tokens) <= self._states.capacity:
                best, most = path, shared
        notes = []
        if best is not None or len(held) - here >= LEAST:
            notes += self.keep()
        if best is not None:
            notes += self._read(best)
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
            facts, parts = self._states.collect()
            size = sum(part.nbytes for part in parts.values()) + (1 << 16)
            if size > self._size:
                logger.info("%d MB of one conversation are more than is kept", size >> 20)
                return []
            # A conversation that grew takes the place of its beginning.
            worthless = 1 if self._recurrent else LEAST
            for path, known in self._entries():
                if len(known) - _shared(known, parts[f"{TARGET}.tokens"]) < worthless:
                    discard(path)
            self._trim(self._size - size)
            name = fingerprint({"tokens": tokens})[:16]
            write(folder() / f"{self._name}-{name}.session", facts, parts)
        except (SessionError, OSError) as error:
            logger.warning("a conversation is not kept: %s", error)
            return [f"What was read of the last conversation is not kept: {error}"]
        self._kept = tokens
        return []

    def _read(self, path: Path) -> list[str]:
        try:
            notes = self._states.restore(SessionFile(path))
            os.utime(path)
        except FileNotFoundError:  # another process was short of room
            return []
        except (SessionError, OSError) as error:
            notes = [str(error)]
        self._kept = list(self._states.tokens)
        if not notes:
            return []
        discard(path)
        logger.warning("a conversation that was kept is decoded again: %s", "; ".join(notes))
        return [f"A conversation that was kept is decoded again: {'; '.join(notes)}."]

    def _entries(self) -> Iterator[tuple[Path, Part]]:
        """The files that fit this pair, and their tokens."""
        for path in sorted(folder().glob(f"{self._name}-*.session")):
            tokens = self._tokens(path)
            if tokens is not None:
                yield path, tokens

    def _tokens(self, path: Path) -> Part | None:
        """The tokens of a file; None, and the file is gone, where it cannot be used."""
        try:
            if path not in self._known:  # its name is made of them
                self._known[path] = np.array(SessionFile(path).part(f"{TARGET}.tokens"))
            return self._known[path]
        except FileNotFoundError:
            pass
        except (SessionError, OSError) as error:
            logger.warning("%s is removed: %s", path, error)
            discard(path)
        return None

    def _trim(self, most: int) -> None:
        """Remove what was not used for longest, until all have so many bytes at most."""
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


def folder() -> Path:
    """Where all the files are."""
    return paths.cache_folder() / "conversations"


def _shared(one: Part, other: Part) -> int:
    """Length of the longest common beginning."""
    length = min(len(one), len(other))
    differing = np.flatnonzero(one[:length] != other[:length])
    return int(differing[0]) if len(differing) else length
