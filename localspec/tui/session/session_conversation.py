"""The conversation of `localspec chat --session FILE`.

The file has the caches and the shown branch; the history has all branches under the same id.
"""

import time
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from localspec.chat import conversation as chat
from localspec.chat.conversation import Attachment, Conversation, Message
from localspec.chat.titles import title_from
from localspec.history.rows import plain_record


@dataclass(frozen=True, slots=True)
class KeptSession:
    """A session file and its conversation, which is None for a new or damaged file."""

    path: Path
    conversation: Conversation | None

    def conversation_or(self, new: Conversation) -> Conversation:
        """The stored conversation with the settings of `new`, or `new`."""
        kept = self.conversation
        if kept is None:
            return new
        kept.sampling, kept.max_tokens = new.sampling, new.max_tokens
        kept.system = kept.system or new.system
        return kept


def read(path: Path) -> KeptSession:
    """Read the conversation of a session file. Raises SessionError for other or unreadable
    files."""
    from localspec.sessions.session_file import DamagedSession, SessionFile

    try:
        found = SessionFile(path).facts.get("conversation")
    except (FileNotFoundError, DamagedSession):
        found = None
    return KeptSession(path, conversation_of(found))


def kept(conversation: Conversation) -> dict[str, Any]:
    """The shown branch, as JSON values for `read`."""
    names = ("id", "role", "content", "state", "created")
    messages = [
        {
            **{name: getattr(message, name) for name in names},
            "attachments": [[file.name, file.text] for file in message.attachments],
        }
        for message in conversation.path()
    ]
    about = {name: getattr(conversation, name) for name in ("id", "title", "system")}
    return {**about, "messages": messages}


def conversation_of(found: Any) -> Conversation | None:
    """A conversation from `kept`, or from messages that `localspec run` or another program saved;
    None from other values."""
    if isinstance(found, list):
        found = {"messages": found}
    try:
        return _conversation_from(found) if found["messages"] else None
    except (AttributeError, KeyError, TypeError):
        return None


def _conversation_from(found: dict[str, Any]) -> Conversation:
    system, messages = found.get("system"), dict[str, Message]()
    for stored in found["messages"]:
        text = stored["content"] or ""
        if not isinstance(text, str):  # parts, of which images have no text
            text = "\n".join(part["text"] for part in text if "text" in part)
        if stored["role"] == "system":
            system = system or text
        if stored["role"] not in (chat.USER, chat.ASSISTANT):
            continue
        values = {"created": time.time(), "state": chat.COMPLETE} | stored
        values |= {"parent": next(reversed(messages), None), "content": text}
        message = plain_record(Message, [values.get(each.name) for each in fields(Message)])
        if not message.id or message.id in messages:
            message.id = chat.new_id()
        if message.state not in chat.STATES:
            message.state = chat.STOPPED
        message.attachments = [Attachment(*file) for file in stored.get("attachments", ())]
        messages[message.id] = message
    first = next(iter(messages.values()), None)
    return Conversation(
        id=str(found.get("id") or chat.new_id()),
        title=str(found.get("title") or title_from(first.content if first else "")),
        system=str(system) if system else None,
        messages=messages,
    )
