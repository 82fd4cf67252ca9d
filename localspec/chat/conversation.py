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

from localspec.chat.figures import Rejected
from localspec.chat.titles import NEW, one_line, title_from
from localspec.prompting.roles import joined

USER, ASSISTANT = "user", "assistant"

COMPLETE, STREAMING, STOPPED = "complete", "streaming", "stopped"
FAILED, INTERRUPTED, UNSENT = "failed", "interrupted", "unsent"
STATES = (COMPLETE, STREAMING, STOPPED, FAILED, INTERRUPTED, UNSENT)
"""States of a message.

`interrupted`: its writer is gone; `unsent`: a user's message that no model has begun to answer.
"""

REPEATS = "repetition"
"""`finish_reason` of an answer that was ended because it kept repeating itself."""

BY_TEXT, BY_MODEL, BY_USER = "text", "model", "user"
"""Source of a title: the first message's words, a model, or the user."""


def new_id() -> str:
    """Create an id of a message or conversation: 32 hexadecimal digits."""
    return uuid.uuid4().hex


@dataclass(slots=True)
class Attachment:
    """A text file, or an image, stored as a data: URL in `text`."""

    name: str
    text: str

    @classmethod
    def of_image(cls, name: str, image: bytes) -> Attachment:
        return cls(name, f"{_IMAGE}{base64.b64encode(image).decode()}")

    @property
    def image(self) -> bytes | None:
        """The image's bytes; None for a text."""
        if not self.text.startswith(_IMAGE):
            return None
        try:
            return base64.b64decode(self.text.removeprefix(_IMAGE), validate=True)
        except ValueError:
            return None


_IMAGE = "data:image/*;base64,"


@dataclass(slots=True)
class Message:
    """A message. `parent`: id of the previous message, None for a first one; `created`: Unix time;
    `state`: one of STATES; `stats`: `Figures.as_dict()`; `spans`: runs of (characters, source) in
    `content`. Not stored: `note`: its current status; `rejected`: rejected proposals, for answers
    of this session."""

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
    note: str | None = field(default=None, compare=False)
    rejected: Sequence[Rejected] = field(default=(), compare=False)


@dataclass(slots=True)
class Conversation:
    """A tree of messages, and settings. Fields of messages may be changed in place, except `id` and
    `parent`. Parents precede their children; others are replaced by None, so that a damaged history
    can be shown. `titled_by`: BY_TEXT, BY_MODEL or BY_USER; `sampling`: fields of `SamplingParams`
    that differ from the default; `max_tokens`: None for the whole context; `tip`: the last message
    of the shown branch; `messages`: by id, oldest first."""

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
        known: set[str | None] = {None}
        for message in self.messages.values():
            if message.parent not in known:
                message.parent = None
            known.add(message.id)
            self._children.setdefault(message.parent, []).append(message.id)
        if self.tip not in self.messages:
            self.tip = next(reversed(self.messages), None)

    def path(self) -> list[Message]:
        """The shown branch, from first message to tip."""
        return self.path_to(self.tip)

    def children(self, id: str | None) -> list[Message]:
        """Messages that follow the given one, oldest first; for None the first messages."""
        return [self.messages[child] for child in self._children.get(id, ())]

    def siblings(self, id: str) -> list[Message]:
        return self.children(self.messages[id].parent)

    def select(self, id: str) -> None:
        """Show the branch through a message, down to its newest leaf."""
        self.tip, below = id, {id}
        for message in self.messages.values():
            if message.parent in below:
                self.tip = message.id
                below.add(message.id)

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
        """Append a message and make it the tip; the first one may set the title. `parent`: by
        default the tip; None for another first message."""
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
        """Messages for `Engine.stream`, up to `upto` or the tip, without failed and empty answers.
        Consecutive user messages are joined: many templates require alternating roles."""
        prompt: list[dict[str, Any]] = []
        if self.system and self.system.strip():
            prompt.append({"role": "system", "content": self.system})
        for message in self.path_to(upto) if upto is not None else self.path():
            content = _content_with_attachments(message)
            if not content or (message.role == ASSISTANT and message.state == FAILED):
                continue
            if prompt and prompt[-1]["role"] == message.role == USER:
                prompt[-1]["content"] = joined(prompt[-1]["content"], content)
            else:
                prompt.append({"role": message.role, "content": content})
        return prompt

    def path_to(self, id: str | None) -> list[Message]:
        """The messages from the first to the given one, which may be on another branch."""
        upwards = []
        while id is not None:
            upwards.append(self.messages[id])
            id = upwards[-1].parent
        return upwards[::-1]


def _content_with_attachments(message: Message) -> str | list[dict[str, Any]]:
    """The content for the model: images, files under their names, then the text; with images as for
    `localspec.llama.pictures.mark_images`."""
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
    """Enclose a text in a code block, with a fence longer than any run of backticks in it."""
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    end = "" if text.endswith("\n") else "\n"
    return f"{fence}\n{text}{end}{fence}"
