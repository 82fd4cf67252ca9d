"""Between user, history and model; of the screen it knows only `View`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from localspec.chat.conversation import (
    ASSISTANT,
    BY_MODEL,
    COMPLETE,
    FAILED,
    STOPPED,
    STREAMING,
    UNSENT,
    USER,
    Attachment,
    Conversation,
    Message,
)
from localspec.chat.figures import Figures
from localspec.chat.titles import NEW, title_from
from localspec.errors import UsageError
from localspec.history.writer import HistoryWriter
from localspec.tui.session import commands, events
from localspec.tui.session.answer import Running, ShownAnswer
from localspec.tui.session.background_engine import BackgroundEngine

NEVER_BEGUN = "■ stopped before it was answered"
TITLE = "title"
"""Id in events about a title; no message has it."""
WISH = (
    "Give our conversation a title of at most six words. Answer with the title alone, "
    "without quotation marks."
)
TITLE_TOKENS = 24


class View(Protocol):
    """The screen, called in its own thread."""

    def show_conversation(self) -> None: ...

    def message_changed(self, message: Message) -> None: ...

    def working(self, doing: str | None) -> None: ...

    def answering(self, begins: bool) -> None: ...

    def overflowed(self, conversation: Conversation, error: str) -> None: ...

    def tell(self, text: str, *, error: bool = False) -> None: ...


@dataclass(slots=True)
class Conversing:
    """Sends, answers, branches. `conversation`: the one that is shown; `running`: the answer in
    progress; it may belong to another conversation; `opened`: the open pair; `notes`: what happens
    to messages now, by id; `learns`, `records`: see `localspec.tui.control.switches`."""

    view: View
    store: HistoryWriter
    engine: BackgroundEngine
    conversation: Conversation = field(default_factory=Conversation)
    running: Running | None = None
    opened: events.Opened | None = None
    notes: dict[str, str] = field(default_factory=dict)
    learns: bool = False
    records: bool = False
    _to_title: Conversation | None = None
    """That the model is asked to name."""
    _dropping: set[str] = field(default_factory=set)
    """Conversations whose oldest turns may be left out."""

    # What the user does

    async def send(
        self, text: str, attachments: Sequence[Attachment] = (), *, instead_of: str | None = None
    ) -> None:
        """Send a message and have it answered; UsageError while an answer is coming.

        It counts as sent once the history holds it and there is a model to answer it. It is a
        branch of the message `instead_of`, an id.
        """
        self.require_idle()
        conversation = self.conversation
        state = UNSENT if self.opened is None else COMPLETE
        old = None if instead_of is None else conversation.messages[instead_of]
        message = conversation.add(
            USER,
            text,
            parent=conversation.tip if old is None else old.parent,
            state=state,
            attachments=attachments or (old.attachments if old else ()),
        )
        self.running = Running(conversation, message.id)
        self._note(message, "sending …")
        self.view.show_conversation()
        # Where it cannot be kept the store tells why, and the conversation goes on without.
        await asyncio.shield(asyncio.wrap_future(self.store.put(conversation, message)))
        if self.running is not None and self.running.to == message.id:
            self._note(message, None)
            self._ask(self.running)

    def regenerate(self, message: str | None = None) -> None:
        """Answer this message again, or the one that it answers; None: the last one. Raises
        UsageError."""
        self.require_idle()
        conversation = self.conversation
        found = conversation.messages.get(message or conversation.tip or "")
        if found is not None and found.role == ASSISTANT:
            found = conversation.messages.get(found.parent or "")
        if found is None:
            raise UsageError("There is no message to answer yet. Write one.")
        # Nothing that hung below the old answer may stay in view.
        conversation.tip = found.id
        self.running = Running(conversation, found.id)
        self.view.show_conversation()
        self._ask(self.running)

    def branch(self, step: int, message: str | None = None) -> None:
        """Show a neighbouring branch of the message, or of the last one with any. Raises
        UsageError."""
        self.require_idle()
        conversation = self.conversation
        path = conversation.path()
        ids = [message] if message else [m.id for m in reversed(path)]
        branching = next((id for id in ids if len(conversation.siblings(id)) > 1), None)
        if branching is None:
            raise UsageError("There are no branches here. Answer again (r) or edit (e) makes one.")
        siblings = [m.id for m in conversation.siblings(branching)]
        number = siblings.index(branching) + step
        if not 0 <= number < len(siblings):
            raise UsageError(f"This is the {'first' if step < 0 else 'last'} of the branches.")
        conversation.select(siblings[number])
        self.store.put(conversation)
        self.view.show_conversation()

    def stop(self) -> None:
        running = self.running
        if running is not None and not running.asked:
            # Its message is still on its way to the disk, and the engine was not asked yet.
            self._note(running.conversation.messages[running.to], NEVER_BEGUN)
            self._over()
        self.engine.stop()

    def begin(self, conversation: Conversation) -> None:
        """Show another conversation. A running answer continues in its own."""
        running = self.running
        if running is not None and running.conversation.id == conversation.id:
            conversation = running.conversation
        self.conversation = conversation
        self.view.show_conversation()

    def drop_oldest(self) -> None:
        self._dropping.add(self.conversation.id)
        self.regenerate()

    def configure(self, *, of: Conversation | None = None, **settings: object) -> None:
        """Set fields of a conversation, by default of the one that is shown."""
        conversation = of or self.conversation
        for name, value in settings.items():
            setattr(conversation, name, value)
        if conversation.messages:
            self.store.put(conversation)

    def ask_for_title(self) -> None:
        """Have the model name the conversation. Raises UsageError."""
        self.require_idle()
        conversation = self.conversation
        if not conversation.messages:
            raise UsageError("There is nothing to name yet. Write a message.")
        self._to_title = conversation
        # Behind the conversation, so that the cache stays useful for the next message.
        messages = [*conversation.for_model(), {"role": USER, "content": WISH}]
        greedy = commands.checked(temperature=0.0)
        self.engine.ask(
            events.Question(TITLE, messages, greedy, TITLE_TOKENS, "error", lambda _text: None)
        )

    def forget(self, conversation: str) -> None:
        """A conversation is about to be deleted."""
        if self.running is not None and self.running.conversation.id == conversation:
            self.stop()
        self.engine.forget(conversation)

    def leave(self) -> None:
        """The chat and its thread end: keep what has come of an answer."""
        running = self.running
        if running is None or running.finish(STOPPED) is None or running.message is None:
            return
        running.message.finish_reason = "cancelled"
        self.store.put(running.conversation, running.message)

    # What the engine's thread tells

    def on_event(self, event: events.Event) -> None:
        if isinstance(event, events.Progress) and event.message is None:
            self.view.working(event.text)
        elif isinstance(event, events.Opened):
            self.opened = event
            self.view.working(None)
            for notice in event.notices:
                self.view.tell(notice)
        elif isinstance(event, events.NotOpened):
            self.opened = event.still
            self.view.working(None)
            if not event.cancelled:
                stays = f" {event.still.model} stays open." if event.still else ""
                self.view.tell(f"{event.error}{stays}", error=True)
        elif isinstance(event, events.NotKept):
            self.view.tell(event.error, error=True)
        elif event.message == TITLE:
            if isinstance(event, events.AnswerEnded | events.AnswerFailed):
                self._on_title(event)
        elif self.running is not None and event.message == self.running.to:
            self._on_answer(self.running, event)

    def tick(self, *, spans: bool) -> Figures | None:
        """Take in the answer's progress, with `spans` if shown; returns its figures if there is
        one."""
        running = self.running
        if running is None or running.answer is None or running.message is None:
            return None
        if running.take(spans=spans):
            self.notes.pop(running.message.id, None)
            self.view.message_changed(running.message)
        return running.answer.meter.figures()

    @property
    def comes_here(self) -> Running | None:
        """The running answer, if it is part of what is shown."""
        running = self.running
        return running if running and running.conversation is self.conversation else None

    def require_idle(self) -> None:
        """Raise a UsageError while an answer is coming."""
        if self.running is not None:
            raise UsageError("An answer is still coming. Wait for it, or stop it with Esc.")

    # Within

    def _ask(self, running: Running) -> None:
        conversation = running.conversation

        def keep(text: str) -> None:
            if running.message is not None:
                self.store.streaming(conversation, replace(running.message, content=text))

        if self._to_title is not None:
            self.engine.stop()  # a title can wait
        asked = conversation.messages[running.to]
        try:
            # A conversation may be from a file, with anything in it.
            sampling = commands.checked(**conversation.sampling)
        except UsageError as error:
            self._note(asked, f"✗ {error}")
            self._over()
            self.view.tell(str(error), error=True)
            return
        running.asked = True
        self.view.answering(True)
        if self.opened is None:
            self._note(asked, "waiting for the model …")
        self.engine.ask(
            events.Question(
                running.to,
                conversation.for_model(upto=running.to),
                sampling,
                conversation.max_tokens,
                "drop_oldest" if conversation.id in self._dropping else "error",
                keep,
                conversation.id if self.records else None,
            )
        )

    def _on_answer(self, running: Running, event: events.Event) -> None:
        asked = running.conversation.messages[running.to]
        if isinstance(event, events.Progress):
            self._note(running.message or asked, event.text)
        elif isinstance(event, events.AnswerBegan):
            self._note(asked, None)
            self._begin_answer(running, event.answer)
        elif isinstance(event, events.AnswerEnded):
            stopped = event.finish_reason == "cancelled"
            self._end_answer(running, event.text, STOPPED if stopped else COMPLETE)
            if running.message is not None:
                running.message.finish_reason = event.finish_reason
                self._keep(running)
                self._learn(running.conversation)
            self._note(asked, NEVER_BEGUN if not running.message else None)
            self._over()
        elif isinstance(event, events.AnswerFailed) and event.overflow and self._can_drop(running):
            self._note(asked, None)
            self._over()
            self.view.overflowed(running.conversation, event.error)
        elif isinstance(event, events.AnswerFailed):
            self._end_answer(running, event.text, FAILED)
            if running.message is None:
                if self.opened is None:
                    asked.state = UNSENT
                    self.store.put(running.conversation, asked)
                self._note(asked, f"✗ {event.error}")
            else:
                running.message.stats = {**(running.message.stats or {}), "error": event.error}
                self._keep(running)
            self._over()
            self.view.tell(event.error, error=True)

    def _can_drop(self, running: Running) -> bool:
        """Whether there are turns before the message, not left out so far."""
        first = running.conversation.messages[running.to].parent is None
        return not first and running.conversation.id not in self._dropping

    def _on_title(self, event: events.AnswerEnded | events.AnswerFailed) -> None:
        conversation, self._to_title = self._to_title, None
        whole = isinstance(event, events.AnswerEnded) and event.finish_reason == "stop"
        title = title_from(event.text)
        if conversation is None or not whole or title == NEW or title.startswith("<"):
            self.view.tell("The model found no title. Name it with /title TEXT.")
            return
        title = title.strip("\"'*. ")
        self.configure(of=conversation, title=title, titled_by=BY_MODEL)
        self.view.show_conversation()

    def _begin_answer(self, running: Running, answer: ShownAnswer) -> None:
        opened, conversation = self.opened, running.conversation
        model, draft = (opened.model, opened.draft) if opened else (None, None)
        if opened is not None:
            conversation.model, conversation.draft = model, draft
        for asked in conversation.way_to(running.to):
            if asked.state == UNSENT:
                asked.state = COMPLETE
                self.store.put(conversation, asked)
        shown = conversation is self.conversation and conversation.tip == running.to
        message = conversation.add(
            ASSISTANT, "", parent=running.to, state=STREAMING, model=model, draft=draft
        )
        running.message, running.answer = message, answer
        self.store.streaming(conversation, message)
        if shown:
            self.view.show_conversation()

    def _end_answer(self, running: Running, text: str, state: str) -> None:
        figures = running.finish(state, text)
        if figures is None or running.message is None:
            return
        self.notes.pop(running.message.id, None)
        for notice in figures.notices:
            self.view.tell(notice)

    def _keep(self, running: Running) -> None:
        assert running.message is not None
        self.store.put(running.conversation, running.message)
        self.view.message_changed(running.message)

    def _learn(self, conversation: Conversation) -> None:
        if self.learns:
            texts = [message.content for message in conversation.messages.values()]
            self.engine.learn(conversation.id, [text for text in texts if text])

    def _over(self) -> None:
        self.running = None
        self.view.answering(False)

    def _note(self, message: Message, note: str | None) -> None:
        if note is None:
            if self.notes.pop(message.id, None) is None:
                return
        else:
            self.notes[message.id] = note
        self.view.message_changed(message)
