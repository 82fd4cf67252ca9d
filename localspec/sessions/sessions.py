"""The sessions of one engine: those in files that somebody named, and those kept by themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localspec.errors import SessionError
from localspec.identity import fingerprint
from localspec.llama.target import shared_prefix
from localspec.sessions.cache_states import TARGET, CacheStates
from localspec.sessions.conversation_files import ConversationFiles
from localspec.sessions.prompt_cache import PromptCache
from localspec.sessions.session_file import Damaged, SessionFile


@dataclass(frozen=True, slots=True)
class OpenedSession:
    """What was found in a file.

    Attributes:
        conversation: what was kept with it, None where there was nothing.
        tokens: how many of it need not be decoded again.
        notices: what could not be used, sentences.
    """

    conversation: Any
    tokens: int
    notices: tuple[str, ...] = ()


class Sessions:
    """What an engine asks for its sessions.

    Args:
        states: its caches.
        size: bytes on disk for what is kept by itself; 0 keeps nothing.
        recurrent: see `ConversationFiles`.

    Attributes:
        states: the same.
        files: of what is kept by itself; None where nothing is.
    """

    def __init__(self, states: CacheStates, size: int, *, recurrent: bool) -> None:
        self.states = states
        self._recurrent = recurrent
        name = fingerprint(states.identity)[:16]
        self.files = ConversationFiles(name, size, recurrent=recurrent) if size else None
        self._automatic = None if self.files is None else PromptCache(states, self.files)
        self._named: SessionFile | None = None

    def open(self, path: Path) -> OpenedSession:
        """Take up a session: the next prompt that goes on from it finds it in the caches.

        Raises:
            SessionError: the file is something else, or cannot be read.
        """
        self._named = None
        try:
            file = SessionFile(path)
        except FileNotFoundError:
            return OpenedSession(None, 0)
        except Damaged:
            notice = (
                f"The session in {path} is damaged, so a new one starts; the file will be kept as "
                f"{path.name}.damaged."
            )
            return OpenedSession(None, 0, (notice,))
        conversation, misfits = file.facts.get("conversation"), self.states.misfits(file)
        if TARGET in misfits:
            notice = f"The session in {path} is decoded again: {misfits[TARGET]}."
            return OpenedSession(conversation, 0, (notice,))
        self._named = file
        notices = [
            f"The draft model reads the session in {path} again: {why}." for why in misfits.values()
        ]
        return OpenedSession(conversation, file.facts["lengths"][TARGET], tuple(notices))

    def leave(self) -> None:
        """The file that was opened serves no more."""
        self._named = None

    def save(self, path: Path, conversation: Any) -> None:
        """Keep what the caches hold.

        Raises:
            SessionError: it cannot be written, or would replace something else.
        """
        self.states.save(path, conversation)
        self._named = SessionFile(path)

    def recall(self, prompt: Sequence[int]) -> list[str]:
        """Have the caches hold as much of a prompt as was kept of it; returns what the user should
        know."""
        notes = self._recall_named(prompt)
        return notes if self._automatic is None else notes + self._automatic.recall(prompt)

    def close(self) -> None:
        """Before the caches are freed."""
        if self._automatic is not None:
            self._automatic.keep()

    def _recall_named(self, prompt: Sequence[int]) -> list[str]:
        """The same from the session that was opened.

        Not when it was opened: what is measured before an answer may empty the caches.
        """
        file = self._named
        if file is None:
            return []
        try:
            tokens = file.part(f"{TARGET}.tokens").tolist()
            shared = shared_prefix(tokens, prompt)
            if self._recurrent and shared < len(tokens):
                return []
            if shared <= shared_prefix(self.states.tokens, prompt):
                return []
            notes = [] if self._automatic is None else self._automatic.keep()
            why = self.states.restore(file)
        except SessionError as error:
            notes, why = [], [str(error)]
        if why:
            self._named = None
            notes.append(f"The session in {file.path} is decoded again: {'; '.join(why)}.")
        return notes
