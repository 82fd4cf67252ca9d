"""Conversations as files: Markdown to read, JSON to keep."""

from __future__ import annotations

import errno
import json
import math
import os
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from localspec.chat.conversation import (
    ASSISTANT,
    BY_TEXT,
    COMPLETE,
    FAILED,
    INTERRUPTED,
    STATES,
    STOPPED,
    STREAMING,
    UNSENT,
    USER,
    Attachment,
    Conversation,
    Message,
    fence_for,
)
from localspec.chat.titles import one_line, slug
from localspec.errors import LocalspecError, UsageError
from localspec.history.rows import storable

FORMAT, VERSION = "localspec-conversation", 1
"""What the JSON says of itself. The version counts up when it means something else."""

_ENDINGS = {
    STREAMING: "still being written",
    STOPPED: "stopped",
    FAILED: "failed",
    INTERRUPTED: "interrupted",
    UNSENT: "not sent",
}
_MOST = 1000
"""Names that are tried for a file before giving up."""


def to_markdown(conversation: Conversation) -> str:
    """The branch that is shown, as a document: who said what, with which figures."""
    parts = [f"# {one_line(conversation.title)}", _subtitle(conversation)]
    if conversation.system and conversation.system.strip():
        parts += ["## System prompt", _closed(conversation.system.strip())]
    for message in conversation.path():
        parts.append(f"## {_speaker(message)}")
        for attachment in message.attachments:
            if attachment.image is not None:
                parts.append(f"Attached: **{one_line(attachment.name)}**, an image")
                continue
            end = "" if attachment.text.endswith("\n") else "\n"
            fence = fence_for(attachment.text)
            parts.append(
                f"Attached: **{one_line(attachment.name)}**\n\n"
                f"{fence}\n{attachment.text}{end}{fence}"
            )
        if message.content.strip():
            parts.append(_closed(message.content.strip("\n")))
        line = _figures(message)
        if line:
            parts.append(f"*{line}*")
    return "\n\n".join(storable(part) for part in parts) + "\n"


def to_json(conversation: Conversation) -> str:
    """Everything, all branches, for `from_json` and for other programs."""
    found = {
        "format": FORMAT,
        "version": VERSION,
        "id": conversation.id,
        "title": conversation.title,
        "titled_by": conversation.titled_by,
        "created": conversation.created,
        "updated": conversation.updated,
        "system": conversation.system,
        "sampling": conversation.sampling,
        "max_tokens": conversation.max_tokens,
        "model": conversation.model,
        "draft": conversation.draft,
        "tip": conversation.tip,
        "messages": [_as_dict(message) for message in conversation.messages.values()],
    }
    return storable(json.dumps(_finite(found), ensure_ascii=False, indent=2, default=str)) + "\n"


def from_json(text: str) -> Conversation:
    """What `to_json` wrote.

    Raises:
        UsageError: another kind of file, or one that is not whole.
    """
    try:
        found = json.loads(text)
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise UsageError(
                "This is not a conversation of localspec. Give a file that `localspec history "
                "export "
                "--format json` wrote."
            )
        if found["version"] != VERSION:
            raise UsageError(
                f"The conversation has format {found['version']}, and this is version {VERSION}. "
                "Update localspec."
            )
        return Conversation(
            id=str(found["id"]),
            title=str(found["title"]),
            titled_by=str(found.get("titled_by", BY_TEXT)),
            created=float(found["created"]),
            updated=float(found["updated"]),
            system=found.get("system"),
            sampling=dict(found.get("sampling") or {}),
            max_tokens=found.get("max_tokens"),
            model=found.get("model"),
            draft=found.get("draft"),
            tip=found.get("tip"),
            messages={each["id"]: _message(each) for each in found["messages"]},
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(
            f"The conversation is not whole: {type(error).__name__}: {error}. Export it again."
        ) from None


FORMATS = {"md": to_markdown, "json": to_json}


def write_export(conversation: Conversation, where: Path, *, form: str | None = None) -> Path:
    """Write a conversation to a file, whole or not at all, and never over another one.

    Args:
        conversation: what to write.
        where: the file, or a folder, in which it is named after the title. Where there is such a
            file already, -2, -3 … is put behind the name.
        form: "md" or "json"; None goes by the ending of the file, and is "md" for others.

    Returns:
        The file.

    Raises:
        UsageError: no such format.
        LocalspecError: it cannot be written: no folder, no permission, no room.
    """
    if form is not None and form not in FORMATS:
        raise UsageError(f"There is no format '{form}'. Choose one of {', '.join(FORMATS)}.")
    if os.path.isdir(where):  # unlike Path's own, it takes any name
        form = form or "md"
        where = where / f"{slug(conversation.title)}.{form}"
    else:
        form = form or ("json" if where.suffix.lower() == ".json" else "md")
    data = FORMATS[form](conversation).encode()
    try:
        return _write_new(where, data)
    except OSError as error:
        raise LocalspecError(_explained(where, error)) from None
    except ValueError:  # a NUL in it
        raise UsageError(f"{where} is not a name of a file. Name another one.") from None


def _write_new(where: Path, data: bytes) -> Path:
    # A name of its own that is given up for the real one: nobody ever sees half of it.
    descriptor, name = tempfile.mkstemp(dir=where.parent, prefix=".", suffix=".partial")
    partial = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.chmod(0o666 & ~_umask())
        for number in range(1, _MOST):
            target = where if number == 1 else where.with_stem(f"{where.stem}-{number}")
            with suppress(FileExistsError):
                _take_name(partial, target)
                return target
        raise FileExistsError(errno.EEXIST, "there are too many of that name", str(where))
    finally:
        partial.unlink(missing_ok=True)


def _take_name(partial: Path, target: Path) -> None:
    """Give the file that name, if it is free; FileExistsError if not."""
    try:
        os.link(partial, target)
    except FileExistsError:
        raise
    except OSError:
        # A file system without links. The name is taken first, so that nobody else has it.
        os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        partial.replace(target)


def _umask() -> int:
    # It can only be read by setting it.
    before = os.umask(0o077)
    os.umask(before)
    return before


def _explained(where: Path, error: OSError) -> str:
    if error.errno == errno.ENOENT:
        return f"There is no folder {where.parent}. Make it, or name another one."
    if error.errno in (errno.ENOSPC, getattr(errno, "EDQUOT", None)):
        return f"The disk is full, so {where} cannot be written. Make room, or name another place."
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"{where} cannot be written: {error.strerror}. Name another place."
    return f"{where} cannot be written: {error.strerror or error}. Name another file."


def _subtitle(conversation: Conversation) -> str:
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(conversation.created))
    parts = [when]
    if conversation.model:
        parts.append(f"model {one_line(conversation.model)}")
    if conversation.draft:
        parts.append(f"draft {one_line(conversation.draft)}")
    return f"*{' · '.join(parts)}*"


def _speaker(message: Message) -> str:
    if message.role == USER:
        return "You"
    return one_line(message.model or "") or ("Assistant" if message.role == ASSISTANT else "?")


def _closed(text: str) -> str:
    """Text whose last code block ends, as that of a stopped answer does not: the rest of the
    document would be taken for code."""
    fence = ""
    for line in text.splitlines():
        stripped = line.lstrip(" ")
        mark = stripped[:1]
        if len(line) - len(stripped) > 3 or mark not in ("`", "~") or not mark:
            continue
        run = len(stripped) - len(stripped.lstrip(mark))
        if not fence:
            # Backticks after backticks in one line are code in the line.
            if run >= 3 and not (mark == "`" and mark in stripped[run:]):
                fence = mark * run
        elif mark == fence[0] and run >= len(fence) and not stripped[run:].strip():
            fence = ""
    return f"{text}\n{fence}" if fence else text


def _figures(message: Message) -> str:
    """The line below an answer, in the words of `localspec run`."""
    parts = []
    stats = message.stats or {}
    if tokens := _number(stats, "tokens"):
        parts.append(f"{tokens:.0f} tokens")
    if speed := _number(stats, "speed"):
        parts.append(f"{speed:.0f} tok/s" if speed >= 100 else f"{speed:.1f} tok/s")
    if tested := _number(stats, "tested"):
        accepted = _number(stats, "accepted")
        if passes := _number(stats, "passes"):
            parts.append(f"{tokens / passes:.2f} tokens/pass")
        parts.append(f"accepted {accepted:.0f} of {tested:.0f} ({100 * accepted / tested:.0f} %)")
    if message.draft:
        parts.append(f"draft {one_line(message.draft)}")
    if stats.get("lossless") is False:
        parts.append(f"lossy (rule {one_line(str(stats.get('rule')))})")
    if message.state != COMPLETE:
        parts.append(_ENDINGS.get(message.state, message.state))
    elif message.finish_reason == "length":
        parts.append("cut off at the longest it may be")
    return " · ".join(parts)


def _number(stats: dict[str, Any], name: str) -> float:
    value = stats.get(name)
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else 0.0


def _finite(value: Any) -> Any:
    """A value without what JSON has no notation for."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(name): _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return value


def _as_dict(message: Message) -> dict[str, Any]:
    names = [field.name for field in fields(message) if field.init]
    found = {name: getattr(message, name) for name in names}
    return found | {"attachments": [asdict(each) for each in message.attachments]}


def _message(found: dict[str, Any]) -> Message:
    spans, state = found.get("spans"), str(found.get("state", COMPLETE))
    content = found["content"]
    if not isinstance(content, str):
        raise TypeError(f"the content of a message is {type(content).__name__}")
    return Message(
        id=str(found["id"]),
        parent=found.get("parent"),
        role=str(found["role"]),
        content=content,
        created=float(found["created"]),
        state=state if state in STATES else INTERRUPTED,
        model=found.get("model"),
        draft=found.get("draft"),
        finish_reason=found.get("finish_reason"),
        stats=found.get("stats"),
        spans=None if spans is None else [(int(length), str(source)) for length, source in spans],
        attachments=[
            Attachment(str(each["name"]), str(each["text"]))
            for each in found.get("attachments") or []
        ],
    )
