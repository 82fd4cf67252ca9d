"""One conversation: a tree of messages, of which one branch is shown. Pure data."""

from __future__ import annotations

import base64
import re
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import EllipsisType
from typing import Any

from localspec.chat.titles import NEW, one_line, title_from
from localspec.prompting.roles import joined

USER, ASSISTANT = "user", "assistant"

COMPLETE, STREAMING, STOPPED = "complete", "streaming", "stopped"
FAILED, INTERRUPTED, UNSENT = "failed", "interrupted", "unsent"
STATES = (COMPLETE, STREAMING, STOPPED, FAILED, INTERRUPTED, UNSENT)
"""States of a message.

`interrupted`: nobody writes it any more; `unsent`: a user's, that no model has begun to answer.
"""

REPEATS = "repetition"
"""`finish_reason` of an answer that was ended because it repeated itself over and over."""

BY_TEXT, BY_MODEL, BY_USER = "text", "model", "user"
"""Who a title is from: the first message's words, a model, or the user."""


def new_id() -> str:
    """An id of a message or conversation: 32 hexadecimal digits."""
    return uuid.uuid4().hex


@dataclass(slots=True)
class Attachment:
    """A text file, or an image, whose text is a data: URL."""

    name: str
    text: str

    @classmethod
    def of_image(cls, name: str, image: bytes) -> Attachment:
        return cls(name, f"{_IMAGE}{base64.b64encode(image).decode()}")

    @property
    def image(self) -> bytes | None:
        """None for a text."""
        if not self.text.startswith(_IMAGE):
            return None
        try:
            return base64.b64decode(self.text.removeprefix(_IMAGE), validate=True)
        except ValueError:
            return None


_IMAGE = "data:image/*;base64,"


@dataclass(slots=True)
class Message:
    """A message. `parent`: id of the one before, None for a first one; `created`: seconds since
    1970; `state`: one of STATES; `stats`: `Figures.as_dict()`; `spans`: (characters, source) runs
    over `content`."""

    id: str
    parent: str | None
    role: str
    content: str
    created: float
    state: str = COMPLETE
    model: str | None = None
    draft: str | None = None
    finish_reason: str | None = None
    stats: dict[str, Any] | None = None
    spans: list[tuple[int, str]] | None = None
    attachments: list[Attachment] = field(default_factory=list)


@dataclass(slots=True)
class Conversation:
    """A tree of messages, and settings. Fields of messages may be changed in place, but for `id`
    and `parent`. A parent that is missing or a descendant counts as None, so that a damaged store
    can be shown. `titled_by`: BY_TEXT, BY_MODEL or BY_USER; `sampling`: fields of `SamplingParams`,
    others have their default; `max_tokens`: None up to the end of the context; `tip`: the last
    message of the shown branch; `messages`: by id, oldest first."""

    id: str = field(default_factory=new_id)
    title: str = NEW
    titled_by: str = BY_TEXT
    created: float = field(default_factory=time.time)
    updated: float = 0.0
    system: str | None = None
    sampling: dict[str, float | int] = field(default_factory=dict)
    max_tokens: int | None = None
    model: str | None = None
    draft: str | None = None
    tip: str | None = None
    messages: dict[str, Message] = field(default_factory=dict)
    _children: dict[str | None, list[str]] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.updated = max(self.updated, self.created)
        self._adopt_orphans()
        for message in self.messages.values():
            self._children.setdefault(message.parent, []).append(message.id)
        if self.tip not in self.messages:
            self.tip = next(reversed(self.messages), None)

    def path(self) -> list[Message]:
        """The shown branch, from first message to tip."""
        return self.way_to(self.tip)

    def children(self, id: str | None) -> list[Message]:
        """Messages after this one, oldest first; for None the first messages."""
        return [self.messages[child] for child in self._children.get(id, ())]

    def siblings(self, id: str) -> list[Message]:
        return self.children(self.messages[id].parent)

    def latest_leaf(self, id: str) -> str:
        """The newest leaf below a message, or the message itself."""
        below, found = {id}, [id]
        while found:
            found = [child for parent in found for child in self._children.get(parent, ())]
            below.update(found)
        newest = next(each for each in reversed(self.messages) if each in below)
        # What comes from a damaged store need not have its parents first.
        while newest in self._children:
            newest = self._children[newest][-1]
        return newest

    def select(self, id: str) -> None:
        """Show the branch through that message, down to its newest leaf."""
        self.tip = self.latest_leaf(id)

    def add(
        self,
        role: str,
        content: str,
        *,
        parent: str | EllipsisType | None = ...,
        state: str = COMPLETE,
        model: str | None = None,
        draft: str | None = None,
        attachments: Sequence[Attachment] = (),
    ) -> Message:
        """Append a message, which becomes the tip; the first one may name the conversation.
        `parent`: by default the tip; None begins beside the first one."""
        message = Message(
            id=new_id(),
            parent=self.tip if isinstance(parent, EllipsisType) else parent,
            role=role,
            content=content,
            created=time.time(),
            state=state,
            model=model,
            draft=draft,
            attachments=list(attachments),
        )
        if not self.messages and self.titled_by == BY_TEXT and self.title == NEW:
            self.title = title_from(content)
            if self.title == NEW and attachments:
                self.title = title_from(attachments[0].name)
        self.messages[message.id] = message
        self._children.setdefault(message.parent, []).append(message.id)
        self.updated = max(self.updated, message.created)
        self.tip = message.id
        return message

    def for_model(self, *, upto: str | None = None) -> list[dict[str, Any]]:
        """The branch for `Engine.stream`, up to a message or the tip, without failed and empty
        answers. User messages in a row become one: many templates insist on turns."""
        found: list[dict[str, Any]] = []
        if self.system and self.system.strip():
            found.append({"role": "system", "content": self.system})
        for message in self.way_to(upto) if upto is not None else self.path():
            content = _with_attachments(message)
            if not content or (message.role == ASSISTANT and message.state == FAILED):
                continue
            if found and found[-1]["role"] == message.role == USER:
                found[-1]["content"] = joined(found[-1]["content"], content)
            else:
                found.append({"role": message.role, "content": content})
        return found

    def way_to(self, id: str | None) -> list[Message]:
        """The messages from the first to that one, which may be on another branch."""
        found = []
        while id is not None:
            found.append(self.messages[id])
            id = found[-1].parent
        return found[::-1]

    def _adopt_orphans(self) -> None:
        """Make roots of messages whose ancestors are missing or circular."""
        sound: set[str | None] = {None}
        for start in self.messages.values():
            way: list[str] = []
            on_way: set[str] = set()
            message = start
            while message.id not in sound:
                way.append(message.id)
                on_way.add(message.id)
                if message.parent in on_way or (
                    message.parent is not None and message.parent not in self.messages
                ):
                    message.parent = None
                if message.parent is None:
                    break
                message = self.messages[message.parent]
            sound.update(way)


Content = str | list[dict[str, Any]]
"""A text, or images and texts as for `localspec.llama.pictures.mark_images`."""


def _with_attachments(message: Message) -> Content:
    """For the model: images, files under their names, then the text."""
    if not message.attachments:
        return message.content
    images = [attachment.image for attachment in message.attachments]
    parts = [
        f"## {one_line(attachment.name)}\n\n{fenced(attachment.text)}"
        for attachment, image in zip(message.attachments, images, strict=True)
        if image is None
    ]
    text = "\n\n".join([*parts, message.content] if message.content else parts)
    shown = [{"type": "image", "image": image} for image in images if image is not None]
    return [*shown, {"type": "text", "text": text}] if shown else text


def fenced(text: str) -> str:
    """A text as a code block, with more backticks around it than it has inside."""
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    end = "" if text.endswith("\n") else "\n"
    return f"{fence}\n{text}{end}{fence}"
