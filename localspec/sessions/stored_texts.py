"""Conversations of an engine with several answers, displaced to disk."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from localspec.errors import SessionError
from localspec.policy.profile import PairProfile
from localspec.sessions.cache_states import CacheStates, StatefulCache
from localspec.sessions.conversation_files import LEAST, ConversationFiles
from localspec.worker_threads import WorkerThreads

logger = logging.getLogger("localspec.sessions")


class StoredTexts:
    """Writes texts in its own thread, as answers wait for whoever drops one."""

    def __init__(
        self, files: ConversationFiles, profile: PairProfile, identity: Mapping[str, Any]
    ) -> None:
        self._files, self._profile, self._identity = files, profile, identity
        self._writer = WorkerThreads("localspec-texts", 1)
        self._known: list[list[int]] = []

    def write(self, target: StatefulCache, draft: StatefulCache | None) -> None:
        if len(target.tokens) < LEAST or target.tokens in self._known:
            return
        try:
            facts, parts = self._states(target, draft).collect()
        except SessionError as error:
            logger.warning("a conversation is not kept: %s", error)
            return

        def task() -> None:
            try:
                self._files.write(facts, parts)
            except (SessionError, OSError) as error:
                logger.warning("a conversation is not kept: %s", error)

        self._writer.submit(task)

    def read(
        self,
        prompt: Sequence[int],
        known: int,
        room: int,
        target: Callable[[], tuple[StatefulCache, StatefulCache | None]],
    ) -> list[str]:
        best = self._files.best(prompt, known, room)
        if best is None:
            return []
        caches = target()
        notes = self._files.read(best, self._states(*caches))
        self._known = [*self._known[-63:], [*caches[0].tokens]]
        return notes

    def close(self) -> None:
        self._writer.close()

    def _states(self, target: StatefulCache, draft: StatefulCache | None) -> CacheStates:
        return CacheStates(target, draft, None, self._profile, self._identity)
