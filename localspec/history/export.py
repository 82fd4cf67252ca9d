"""Export of conversations to Markdown and JSON files."""

import json
import os
import time
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt

from localspec.chat import conversation as chat
from localspec.chat import words
from localspec.chat.conversation import Conversation, Message, fenced
from localspec.chat.figures import Figures
from localspec.chat.titles import one_line, slug
from localspec.errors import LocalspecError, UsageError
from localspec.files import explaining
from localspec.history.rows import storable
from localspec.prompting.reasoning import split_thoughts
from localspec.text import finite

FORMAT, VERSION = "localspec-conversation", 1
"""The version is incremented when the JSON changes incompatibly."""

_ENDINGS = {chat.STREAMING: "still being written", chat.UNSENT: "not sent"}


def to_markdown(conversation: Conversation) -> str:
    """The shown branch as a Markdown document, with figures."""
    parts = [f"# {one_line(conversation.title)}", _subtitle(conversation)]
    if conversation.system and conversation.system.strip():
        parts += ["## System prompt", _closed(conversation.system.strip())]
    for message in conversation.path():
        parts.append(f"## {_speaker(message)}")
        for attachment in message.attachments:
            shown = f"\n\n{fenced(attachment.text)}" if attachment.image is None else ", an image"
            parts.append(f"Attached: **{one_line(attachment.name)}**{shown}")
        reasoning, text = "", message.content
        if message.role == chat.ASSISTANT:
            reasoning, text = split_thoughts(text)
        if reasoning.strip():
            parts.append("\n".join(f"> {line}".rstrip() for line in reasoning.strip().split("\n")))
        if text.strip():
            parts.append(_closed(text.strip("\n")))
        if line := _figures(message):
            parts.append(f"*{line}*")
    return "\n\n".join(storable(part) for part in parts) + "\n"


def to_json(conversation: Conversation) -> str:
    """All branches as JSON."""
    document: dict[str, Any] = {"format": FORMAT, "version": VERSION} | asdict(conversation)
    document["messages"] = list(document["messages"].values())
    del document["_children"]
    for message in document["messages"]:
        del message["note"], message["rejected"]
    return storable(json.dumps(finite(document), ensure_ascii=False, indent=2, default=str)) + "\n"


FORMATS = {"md": to_markdown, "json": to_json}


def write_export(conversation: Conversation, where: Path, *, form: str | None = None) -> Path:
    """Write a conversation to a new file, whole or not at all; returns the file's path. In a folder
    the file is named after the title. Existing files are kept: -2, -3 … is appended to the name.
    `form`: "md" or "json"; None is chosen by the file's extension, by default "md". Raises
    LocalspecError if the file cannot be written."""
    if os.path.isdir(where):  # unlike Path.is_dir, it accepts any name
        form = form or "md"
        where = where / f"{slug(conversation.title)}.{form}"
    else:
        if os.path.exists(where) and not os.path.isfile(where):
            raise UsageError(f"{where} is a pipe or a device. Name a file.")
        form = form or ("json" if where.suffix.lower() == ".json" else "md")
    if not os.path.exists(where.parent):
        raise LocalspecError(f"There is no folder {where.parent}. Create it, or name another one.")
    try:
        with explaining(where, "Name another file."):
            return _write_new(where, FORMATS[form](conversation).encode())
    except ValueError:  # the name contains NUL
        raise UsageError(f"{where} is not a valid file name. Choose another one.") from None


def _write_new(where: Path, data: bytes) -> Path:
    target = where
    for number in count(2):
        try:
            file = target.open("xb")
            break
        except FileExistsError:
            target = where.with_stem(f"{where.stem}-{number}")
    try:
        with file:
            file.write(data)
    except BaseException:
        target.unlink(missing_ok=True)
        raise
    return target


def _subtitle(conversation: Conversation) -> str:
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(conversation.created))
    parts = [when]
    if conversation.model:
        parts.append(f"model {one_line(conversation.model)}")
    if conversation.draft:
        parts.append(f"draft {one_line(conversation.draft)}")
    return f"*{' · '.join(parts)}*"


def _speaker(message: Message) -> str:
    if message.role == chat.USER:
        return "You"
    return one_line(message.model or "") or ("Assistant" if message.role == chat.ASSISTANT else "?")


def _closed(text: str) -> str:
    """Close the last code block of a text, which a stopped answer leaves open."""
    last = next(reversed(MarkdownIt("commonmark").parse(text)), None)
    if last is None or last.type != "fence" or last.map is None:
        return text
    opened, end = last.map
    closed = last.content.endswith("\n") if last.content else end - opened > 1
    return text if closed else f"{text}\n{last.markup}"


def _figures(message: Message) -> str:
    """The line of figures below an answer, as in the chat."""
    figures = Figures.from_dict(message.stats)
    parts = [words.line(figures, draft=message.draft)] if figures.tokens else []
    if message.state != chat.COMPLETE:
        parts.append(_ENDINGS.get(message.state, message.state))
    elif message.finish_reason == "length":
        parts.append("cut off at the token limit")
    elif message.finish_reason == chat.REPEATS:
        parts.append("ended because it repeated itself")
    return " · ".join(map(one_line, parts))
