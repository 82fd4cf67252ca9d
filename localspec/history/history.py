"""The history of conversations on disk; every message is written as it arrives.

Trouble with the file never stops a chat: what cannot be written is kept in memory and written
later. `History.take_notices` reports it.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from localspec.chat.conversation import INTERRUPTED, Conversation, Message
from localspec.errors import HistoryError, LocalspecError, UsageError, describe
from localspec.history.history_file import HistoryFile
from localspec.history.rows import record_of, storable
from localspec.history.statements import ConversationSummary, SearchHit, Statements, expression

T = TypeVar("T")

_SUMMARIES = (
    "SELECT id, title, updated, "
    "(SELECT count(*) FROM messages AS m WHERE m.conversation = c.id), model "
    "FROM conversations AS c ORDER BY updated DESC, seq DESC LIMIT ? OFFSET ?"
)
_IDS = "SELECT id FROM conversations WHERE id >= ? AND id < ? ORDER BY id LIMIT 3"
_PROMPTS = (
    "SELECT CAST(content AS TEXT) FROM messages WHERE role = 'user' ORDER BY seq DESC LIMIT ?"
)


class History(HistoryFile):
    """The store of conversations. Thread-safe; reading never waits for writing."""

    def take_notices(self) -> Sequence[str]:
        """Remove and return the sentences for the user since the last call."""
        taken = list(self.notices)
        del self.notices[: len(taken)]  # others may have been added meanwhile
        return taken

    # Reading

    def count(self) -> int:
        ((count,),) = self._rows("SELECT count(*) FROM conversations") or [(0,)]
        return int(count)

    def list(self, *, limit: int = 50, offset: int = 0) -> Sequence[ConversationSummary]:
        """Conversations, newest first."""
        return [
            record_of(ConversationSummary, row) for row in self._rows(_SUMMARIES, limit, offset)
        ]

    def search(self, query: str, *, limit: int = 50) -> Sequence[SearchHit]:
        """Find messages with all words and "phrases" of a query, whose last word may be incomplete.
        Titles come first, then messages, newest first, a few of each conversation."""
        wanted = expression(query)
        if wanted is None or limit < 1:
            return []
        return self._found(lambda statements: statements.search(wanted, limit))

    def load(self, id: str) -> Conversation:
        """Load a whole conversation; unfinished answers of dead processes become INTERRUPTED.
        Raises HistoryError if it is missing, or the file cannot be read."""
        found = self.read(lambda statements: statements.load(id))
        if found is None:
            raise HistoryError("The conversation is no longer in the history. Choose another one.")
        if not self.waiting and any(m.state == INTERRUPTED for m in found.messages.values()):
            self.write(Statements.mark_interrupted)
        # A chat that was killed mid-answer did not write which answer it showed.
        if found.tip is not None:
            found.select(found.tip)
        return found

    def recent_prompts(self, *, limit: int = 100) -> Sequence[str]:
        """The user's latest messages, oldest first."""
        return [text for (text,) in self._rows(_PROMPTS, limit)][::-1]

    def find(self, prefix: str) -> str:
        """The id of a conversation, from its prefix or its number: 1 is the newest. Raises
        UsageError unless exactly one matches, HistoryError if the file cannot be read."""
        prefix = storable(prefix).strip().lower()
        if re.fullmatch("[0-9]{1,9}", prefix) and 1 <= int(prefix) <= self.count():
            (found,) = self.list(limit=1, offset=int(prefix) - 1)
            return found.id
        last = f"{prefix}\U0010ffff"
        rows = self.read(lambda file: file.rows(_IDS, prefix, last)) if prefix else []
        ids: list[str] = [id for (id,) in rows]
        if not ids:
            raise UsageError(
                f"There is no conversation '{prefix}'. 'localspec history list' shows all."
            )
        if len(ids) > 1 and ids[0] != prefix:
            raise UsageError(
                f"'{prefix}' may be several conversations: {', '.join(id[:12] for id in ids)} … "
                "Type more characters of the id."
            )
        return ids[0]

    # Writing

    def put(self, conversation: Conversation, messages: Sequence[Message] = ()) -> bool:
        """Insert or update a conversation and the given messages in one transaction. Returns
        whether they are on disk, not only in memory. If the history lacks the conversation, as when
        another program has removed it, all of its messages are written."""
        return self.change(conversation.id, lambda file: file.put(conversation, messages))

    def delete(self, ids: Iterable[str]) -> int:
        """Remove conversations, and the data learned and recorded from them; returns their count.
        Raises HistoryError if not all of it could be removed."""
        ids = tuple(ids)
        removed = self.remove(ids)
        self.forget(ids)
        return removed

    def forget(self, ids: Sequence[str]) -> None:
        """Remove the data learned and recorded from removed conversations. Raises as `delete`."""
        from localspec.distill import chats
        from localspec.retrieval.learner import forget_conversations

        problems = []
        for forget in (chats.forget, forget_conversations):
            try:
                forget(ids)
            except (LocalspecError, OSError) as error:  # noqa: PERF203 - twice
                problems.append(describe(error)[0])
        if problems:
            raise HistoryError(
                "The conversations are removed, but not all data learned from them. "
                + " ".join(problems)
            )

    def _rows(self, query: str, *values: object) -> Sequence[Any]:
        return self._found(lambda statements: statements.rows(query, *values))

    def _found(self, question: Callable[[Statements], Sequence[T]]) -> Sequence[T]:
        """What a query finds; nothing if the file cannot be read."""
        try:
            return self.read(question)
        except HistoryError:
            return []
