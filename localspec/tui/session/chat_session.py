"""Between user, history and model; of the screen it knows only `View`."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Any, Protocol

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
from localspec.errors import Cancelled, ContextOverflow, LocalspecError, UsageError, describe
from localspec.history.writer import HistoryWriter
from localspec.tui.session import commands
from localspec.tui.session.answer import Answer
from localspec.tui.session.background_engine import (
    BackgroundEngine,
    OpenPair,
    PairReference,
    Question,
)

STOPPED_EARLY = "■ stopped before it was answered"
KEEP_EVERY = 0.4
"""Seconds between two savings of a growing answer."""
TITLE_PROMPT = (
    "Give our conversation a title of at most six words. Answer with the title alone, "
    "without quotation marks."
)
TITLE_TOKENS = 24

Rest = Coroutine[Any, Any, None]
"""What remains of an action, to be awaited in the screen's thread: it waits for disk and model."""


class View(Protocol):
    """The screen, called in its own thread."""

    def show_conversation(self) -> None: ...

    def message_changed(self, message: Message) -> None: ...

    def working(self, doing: str | None) -> None: ...

    def answering(self, begins: bool) -> None: ...

    async def overflowed(self, conversation: Conversation, error: str) -> None: ...

    def tell(self, text: str, *, error: bool = False) -> None: ...


@dataclass(slots=True)
class ChatSession:
    """Sends, answers, branches. Methods that return a `Rest` raise UsageErrors, or begin, at once.
    `conversation`: the one that is shown; `running`: the answer in progress; it may belong to
    another conversation; `opened`: the open pair; `notes`: what happens to messages now, by id;
    `learns`, `records`: what is kept of conversations besides the history."""

    view: View
    store: HistoryWriter
    engine: BackgroundEngine
    conversation: Conversation = field(default_factory=Conversation)
    running: Answer | None = None
    opened: OpenPair | None = None
    notes: dict[str, str] = field(default_factory=dict)
    learns: bool = False
    records: bool = False
    _titling: bool = False
    """Whether the model is asked to name a conversation."""
    _comparing: bool = False
    """Whether the engine measures something for the last answer."""
    _dropping: set[str] = field(default_factory=set)
    """Conversations whose oldest turns may be left out."""

    # What the user does

    def open(self, pair: PairReference) -> Rest:
        """Open this pair instead of the one that is open."""
        self.view.working("opening the model")
        return self._opened(self.engine.open(pair, self.view.working))

    def send(
        self, text: str, attachments: Sequence[Attachment] = (), *, instead_of: str | None = None
    ) -> Rest:
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
        self.running = Answer(conversation, message.id)
        self._note(message, "sending …")
        self.view.show_conversation()
        kept = self.store.put(conversation, message)
        return self._sent(self.running, asyncio.wrap_future(kept))

    def regenerate(self, message: str | None = None) -> Rest:
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
        self.running = Answer(conversation, found.id)
        self.view.show_conversation()
        return self._answered(self.running)

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
            self._note(running.conversation.messages[running.to], STOPPED_EARLY)
            self._over()
        self.engine.stop()

    def begin(self, conversation: Conversation) -> None:
        """Show another conversation. A running answer continues in its own."""
        running = self.running
        if running is not None and running.conversation.id == conversation.id:
            conversation = running.conversation
        self.conversation = conversation
        self.view.show_conversation()

    def drop_oldest(self) -> Rest:
        self._dropping.add(self.conversation.id)
        return self.regenerate()

    def configure(self, *, of: Conversation | None = None, **settings: object) -> None:
        """Set fields of a conversation, by default of the one that is shown."""
        conversation = of or self.conversation
        for name, value in settings.items():
            setattr(conversation, name, value)
        if conversation.messages:
            self.store.put(conversation)

    def ask_for_title(self) -> Rest:
        """Have the model name the conversation. Raises UsageError."""
        self.require_idle()
        if not self.conversation.messages:
            raise UsageError("There is nothing to name yet. Write a message.")
        self.view.tell("The model is writing a title.")
        return self._titled(self.conversation)

    def forget(self, conversation: str) -> None:
        """A conversation is about to be deleted."""
        if self.running is not None and self.running.conversation.id == conversation:
            self.stop()
        self.engine.forget(conversation)

    def leave(self) -> None:
        """The chat and its thread end: keep what has come of an answer."""
        running = self.running
        if running is not None and running.message is not None:
            running.finish(running.message, STOPPED, "cancelled")
            self.store.put(running.conversation, running.message)

    def tick(self, *, spans: bool) -> Figures | None:
        """Take in the answer's progress, with `spans` if shown; returns its figures if there is
        one."""
        running = self.running
        if running is None or running.message is None:
            return None
        if running.take(spans=spans):
            self.notes.pop(running.message.id, None)
            self.view.message_changed(running.message)
            if monotonic() - running.kept >= KEEP_EVERY:
                running.kept = monotonic()
                self.store.streaming(running.conversation, running.message)
        return running.meter.figures()

    @property
    def shown_answer(self) -> Answer | None:
        """The running answer, if it is part of what is shown."""
        running = self.running
        return running if running and running.conversation is self.conversation else None

    def require_idle(self) -> None:
        """Raise a UsageError while an answer is coming."""
        if self.running is not None:
            raise UsageError("An answer is still coming. Wait for it, or stop it with Esc.")

    # What remains of it

    async def _opened(self, opening: asyncio.Future[OpenPair]) -> None:
        try:
            self.opened = await opening
        except LocalspecError as error:
            self.opened = self.engine.opened
            self.view.working(None)
            if not isinstance(error, Cancelled):
                stays = f" {self.opened.model} stays open." if self.opened else ""
                self.view.tell(f"{describe(error)[0]}{stays}", error=True)
            return
        self.view.working(None)
        for notice in self.opened.notices:
            self.view.tell(notice)

    async def _sent(self, running: Answer, kept: asyncio.Future[bool]) -> None:
        # Where it cannot be kept the store tells why, and the conversation goes on without.
        await asyncio.shield(kept)
        await self._answered(running)

    async def _answered(self, running: Answer) -> None:
        """Ask the model, and keep what comes of it."""
        if self.running is not running:  # it was stopped
            return
        conversation, failure = running.conversation, None
        asked = conversation.messages[running.to]
        running.asked = True
        if self._titling:
            self.engine.stop()  # a title can wait
        waits = self.opened is None or self._comparing
        self._note(asked, "waiting for the model …" if waits else None)
        self.view.answering(True)
        try:
            question = Question(
                conversation.for_model(upto=running.to),
                # A conversation may be from a file, with anything in it.
                commands.checked(**conversation.sampling),
                conversation.max_tokens,
                "drop_oldest" if conversation.id in self._dropping else "error",
                record=self.records,
            )
            await self.engine.answer(
                question,
                running,
                lambda doing: self._note(running.message or asked, doing),
                partial(self._begun, running),
            )
        except Cancelled:
            pass
        except LocalspecError as error:
            failure = error
        overflows = False
        if running.message is not None:
            self._ended(running, running.message, failure)
        elif failure is None:
            self._note(asked, STOPPED_EARLY)
        else:
            # Only where there are turns before the message, not left out so far.
            overflows = isinstance(failure, ContextOverflow) and (
                asked.parent is not None and conversation.id not in self._dropping
            )
            if self.opened is None:
                asked.state = UNSENT
                self.store.put(conversation, asked)
            self._note(asked, None if overflows else f"✗ {describe(failure)[0]}")
        self._over()
        if overflows:
            await self.view.overflowed(conversation, str(failure))
        elif failure is not None:
            self.view.tell(describe(failure)[0], error=True)
        elif running.message is not None:
            await self._followed_up(running, running.message)

    def _begun(self, running: Answer) -> None:
        conversation = running.conversation
        self._note(conversation.messages[running.to], None)
        conversation.model, conversation.draft = running.model, running.draft
        for asked in conversation.path_to(running.to):
            if asked.state == UNSENT:
                asked.state = COMPLETE
                self.store.put(conversation, asked)
        shown = conversation is self.conversation and conversation.tip == running.to
        model, draft = running.model, running.draft
        running.message = message = conversation.add(
            ASSISTANT, "", parent=running.to, state=STREAMING, model=model, draft=draft
        )
        self.store.streaming(conversation, message)
        if shown:
            self.view.show_conversation()

    def _ended(self, running: Answer, message: Message, failure: LocalspecError | None) -> None:
        finish = running.finish_reason or (None if failure else "cancelled")
        state = FAILED if failure else STOPPED if finish == "cancelled" else COMPLETE
        figures = running.finish(message, state, finish)
        self.notes.pop(message.id, None)
        if failure is not None:
            message.stats = {**figures.as_dict(), "error": describe(failure)[0]}
        self.store.put(running.conversation, message)
        self.view.message_changed(message)
        for notice in figures.notices:
            self.view.tell(notice)

    async def _followed_up(self, answer: Answer, message: Message) -> None:
        """Compare the answer with stock llama.cpp; record it, and learn the conversation, where the
        user wants it."""
        conversation, keeping = answer.conversation, []
        self._comparing = message.state == COMPLETE
        with suppress(LocalspecError):  # an internal one, which is in the log
            if self._comparing and await self.engine.compare(answer):
                message.stats = answer.meter.figures().as_dict()
                self.store.put(conversation, message)
                self.view.message_changed(message)
                if self.running is None:
                    self.view.answering(False)
        self._comparing = False
        if answer.logprobs:
            recording = self.engine.record(answer)
            keeping.append(("This answer was not recorded", recording))
        if self.learns:
            texts = [each.content for each in conversation.messages.values()]
            learning = self.engine.learn(conversation.id, [text for text in texts if text])
            keeping.append(("This conversation was not learned", learning))
        for failed, kept in keeping:
            (error,) = await asyncio.gather(kept, return_exceptions=True)
            if isinstance(error, LocalspecError) and not isinstance(error, Cancelled):
                self.view.tell(f"{failed}: {describe(error)[0]}", error=True)

    async def _titled(self, conversation: Conversation) -> None:
        # Behind the conversation, so that the cache stays useful for the next message.
        messages = [*conversation.for_model(), {"role": USER, "content": TITLE_PROMPT}]
        question = Question(messages, commands.checked(temperature=0.0), TITLE_TOKENS)
        answer = Answer(conversation, conversation.tip or "")
        title, self._titling = NEW, True
        with suppress(LocalspecError):
            await self.engine.answer(question, answer)
            answer.take()
            if answer.finish_reason == "stop":
                title = title_from(answer.text)
        self._titling = False
        if title == NEW or title.startswith("<"):
            self.view.tell("The model found no title. Name it with /title TEXT.")
            return
        self.configure(of=conversation, title=title.strip("\"'*. "), titled_by=BY_MODEL)
        self.view.show_conversation()

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
