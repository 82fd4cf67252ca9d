"""The sessions of one engine: named files, and automatically stored conversations. These are
written when another prompt replaces them or the engine closes, and restored for a prompt with a
common prefix."""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localspec.drafters.registry import Parts
from localspec.errors import SessionError
from localspec.files import size_and_time
from localspec.llama.context import Context
from localspec.llama.options import IN_MEMORY
from localspec.llama.sequences import shared_prefix
from localspec.sessions.cache_states import TARGET, CacheStates, identity
from localspec.sessions.conversations import (
    LEAST,
    ConversationFiles,
    ConversationMemory,
    Conversations,
)
from localspec.sessions.session_file import DamagedSession, SessionFile, write


@dataclass(frozen=True, slots=True)
class OpenedSession:
    """`conversation`: stored with it, or None; `tokens`: number restored without prefill;
    `notices`: sentences about unusable parts; `why`: why there are no tokens."""

    conversation: Any
    tokens: int
    notices: tuple[str, ...] = ()
    why: str = "it has no tokens"


class Sessions:
    """`size`: bytes on disk for automatically stored conversations, 0 for none, or IN_MEMORY."""

    def __init__(self, target: Context, parts: Parts, models: Mapping[str, Any], size: int) -> None:
        self._recurrent = target.recurrent
        draft: Any = None if parts.model is None else parts.model.cache  # a head's is not stored
        self._states = CacheStates(target, draft, identity(models))
        self.kept: Conversations[Any] | None = None
        if size > 0:
            self.kept = ConversationFiles(self._states.identity, size, recurrent=self._recurrent)
        elif size == IN_MEMORY:
            self.kept = ConversationMemory(self._states.identity, recurrent=self._recurrent)
        self._named: SessionFile | None = None
        self._opened: tuple[Path | None, tuple[int, int]] = None, (0, 0)

    def open(self, path: Path) -> OpenedSession:
        """Open a session, for the next prompt that continues it. One without usable tokens leaves
        what was opened before. Raises SessionError if the file is unreadable, or not a session."""
        self._opened = path, size_and_time(path)
        try:
            file = SessionFile(path)
        except FileNotFoundError:
            return OpenedSession(None, 0)
        except DamagedSession:
            notice = (
                f"The session in {path} is damaged, so a new one starts; the file will be kept as "
                f"{path.name}.damaged."
            )
            return OpenedSession(None, 0, (notice,), "it is damaged")
        conversation, misfits = file.facts.get("conversation"), self._states.misfits(file.facts)
        try:
            if file.facts["lengths"][TARGET]:
                file.part(TARGET)
        except DamagedSession as error:
            misfits.setdefault(TARGET, str(error))
        if TARGET in misfits:
            notice = f"The session in {path} is prefilled again: {misfits[TARGET]}."
            return OpenedSession(conversation, 0, (notice,), misfits[TARGET])
        if file.facts["lengths"][TARGET]:
            self._named = file
        notices = [
            f"The draft model prefills session {path} again: {why}." for why in misfits.values()
        ]
        return OpenedSession(conversation, file.facts["lengths"][TARGET], tuple(notices))

    def leave(self) -> None:
        self._named = None

    def save(self, path: Path, conversation: Any) -> int:
        """Store the caches, and a conversation of JSON values; returns the number of the target's
        tokens. A damaged session at `path` is renamed. Raises SessionError if saving fails, or
        would replace another kind of file, and after saving under another name if `path` has
        changed since it was opened or saved here."""
        if self._named is not None and not self._states.target.tokens:
            self._states.restore(self._named.facts, self._named.part)  # no prompt has followed it
        facts, parts = self._states.collect(conversation)
        known, before = self._opened
        changed = path == known and size_and_time(path) not in (before, (0, 0))
        where = path.with_stem(f"{path.stem}-{os.getpid()}") if changed else path
        with suppress(FileNotFoundError):
            try:
                SessionFile(where)
            except DamagedSession:
                with suppress(OSError):
                    where.replace(where.with_name(f"{where.name}.damaged"))
        write(where, facts, parts)
        self._named = SessionFile(where)
        if changed:
            raise SessionError(
                f"Another program has changed the session in {path}. This conversation is saved in "
                f"{where}: continue it with that file."
            )
        self._opened = path, size_and_time(path)
        return len(self._states.target.tokens)

    def recall(self, prompt: Sequence[int]) -> list[str]:
        """Restore the stored prefix of a prompt; returns notices."""
        notes = self._recall_named(prompt)
        if self.kept is None:
            return notes
        held = self._states.target.tokens
        here = shared_prefix(held, prompt)
        best = self.kept.best(prompt, here, self._states.target.capacity)
        if best is not None or len(held) - here >= LEAST:
            notes += self.keep()
        if best is not None:
            notes += self.kept.read(best, self._states)
        return notes

    def keep(self, *, ends: bool = False) -> list[str]:
        """Store the caches' text, if conversations are stored; returns notices. `ends`: the engine
        closes."""
        if self.kept is None or (ends and not self.kept.lasting):
            return []
        return self.kept.keep(self._states)

    def _recall_named(self, prompt: Sequence[int]) -> list[str]:
        """Restore the opened session: not earlier, as calibration may clear the caches."""
        if (file := self._named) is None:
            return []
        try:
            tokens = file.part(f"{TARGET}.tokens").tolist()
            shared, here = (shared_prefix(t, prompt) for t in (tokens, self._states.target.tokens))
            if shared <= here or (self._recurrent and shared < len(tokens)):
                return []
            notes = self.keep()
            why = self._states.restore(file.facts, file.part)
        except SessionError as error:
            notes, why = [], [str(error)]
        if why:
            self._named = None
            notes.append(f"The session in {file.path} is prefilled again: {'; '.join(why)}.")
        return notes
