"""The conversation of `localspec chat --session FILE`.

The file has the caches and the shown branch, as models read it; the history has all branches under
the same id.
"""

from pathlib import Path
from typing import Any

from localspec.chat.conversation import ASSISTANT, USER, Conversation, new_id
from localspec.history.rows import storable


def read(path: Path) -> Conversation | None:
    """The conversation of a session file; None for a new or damaged file. Raises SessionError for
    other or unreadable files."""
    from localspec.sessions.session_file import DamagedSession, SessionFile

    try:
        return conversation_of(SessionFile(path).facts.get("conversation"))
    except (FileNotFoundError, DamagedSession):
        return None


def kept(conversation: Conversation) -> dict[str, Any]:
    """The shown branch, as JSON values for `read`."""
    said = conversation.for_model()
    messages = [{"role": one["role"], "content": _text(one["content"])} for one in said]
    return {"id": conversation.id, "messages": messages}


def conversation_of(found: Any) -> Conversation | None:
    """A conversation from `kept`, or from messages that `localspec run` or another program saved;
    None from other values."""
    try:
        messages = found if isinstance(found, list) else found["messages"]
        named = None if found is messages else found.get("id")
        conversation = Conversation(id=str(named or new_id()))
        for stored in messages:
            text = _text(stored["content"] or "")
            if stored["role"] == "system":
                conversation.system = conversation.system or text
            elif stored["role"] in (USER, ASSISTANT):
                conversation.add(stored["role"], text)
    except (AttributeError, KeyError, TypeError):
        return None
    return conversation if messages else None


def _text(content: Any) -> str:
    """A content as text; of its parts, images have none."""
    if not isinstance(content, str):
        content = "\n".join(part["text"] for part in content if "text" in part)
    return storable(content)
