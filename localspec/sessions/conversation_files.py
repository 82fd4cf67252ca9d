"""Conversations stored in the cache folder, found by prefix; the least recently used are evicted
first."""

import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from localspec import paths
from localspec.errors import SessionError
from localspec.files import remove_abandoned
from localspec.identity import fingerprint
from localspec.llama.native_context import CacheFull
from localspec.sessions.cache_states import TARGET, CacheStates
from localspec.sessions.conversations import LEAST, Conversations, logger
from localspec.sessions.session_file import Part, SessionFile, discard, write


class ConversationFiles(Conversations[Path]):
    """The files of one pair, in a folder that all engines share: at most `size` bytes."""

    lasting = True

    def __init__(self, identity: Mapping[str, Any], size: int, *, recurrent: bool) -> None:
        super().__init__(identity, recurrent=recurrent)
        self._size = size
        self._name = fingerprint(dict(identity))[:16]
        self._known: dict[Path, Part] = {}
        self._writer: ThreadPoolExecutor | None = None

    def write_apart(self) -> None:
        self._writer = ThreadPoolExecutor(1, "localspec-texts")

    def close(self) -> None:
        if self._writer is not None:
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
            if self._writer is None:
                write()
            else:
                self._writer.submit(_try_writing, write)

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

    def read(self, path: Path, states: CacheStates) -> list[str]:
        """A damaged file is removed."""
        try:
            notes = states.restore(SessionFile(path))
            os.utime(path)
        except (FileNotFoundError, CacheFull):  # removed by another process, or no room
            return []
        except (SessionError, OSError) as error:
            notes = [str(error)]
        if not notes:
            return []
        discard(path)
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
