"""The chat's session between user, history and model; it uses the screen only through `View`."""

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
from localspec.tui.session.background_engine import BackgroundEngine, OpenPair, PairReference
from localspec.tui.session.preferences import Preferences

STOPPED_EARLY = "■ stopped before it was answered"
KEEP_EVERY = 0.4
"""Seconds between two writes of a growing answer to the history."""
TITLE_PROMPT = (
    "Give our conversation a title of at most six words. Answer with the title alone, "
    "without quotation marks."
)
TITLE_TOKENS = 24

Continuation = Coroutine[Any, Any, None]
"""The part of an action that waits for disk and model; await it in the screen's thread."""


class View(Protocol):
    """The screen, called in its own thread."""

    def show_conversation(self) -> None: ...

    def message_changed(self, message: Message) -> None: ...

    def working(self, doing: str | None) -> None: ...

    def answering(self, begins: bool) -> None: ...

    async def overflowed(self, conversation: Conversation, error: str) -> None: ...

    def show_notice(self, text: str, *, error: bool = False) -> None: ...


@dataclass(slots=True)
class ChatSession:
    """Sends, answers and branches. Methods that return a `Continuation` start the action, or raise
    UsageError, at once. `conversation`: the one that is shown; `running`: the answer in progress,
    which may belong to another conversation; `opened`: the open pair; `unopened`: why none could be
    opened."""

    view: View
    store: HistoryWriter
    engine: BackgroundEngine
    conversation: Conversation
    preferences: Preferences
    running: Answer | None = None
    opened: OpenPair | None = None
    unopened: str = ""
    _titling: bool = False
    """Whether the model is generating a title."""
    _comparing: bool = False
    """Whether the engine is measuring the baseline of the last answer."""
    _dropping: set[str] = field(default_factory=set)
    """Ids of conversations whose oldest turns may be dropped."""

    # Actions of the user

    def open(self, pair: PairReference) -> Continuation:
        """Replace the open pair."""
        self.view.working("opening the model")
        return self._finish_opening(self.engine.open(pair, self.view.working))

    def send(
        self, text: str, attachments: Sequence[Attachment] = (), *, instead_of: str | None = None
    ) -> Continuation:
        """Send a message and answer it. Raises UsageError while an answer is running.

        It counts as sent once the history has it and a model is open. `instead_of`: id of the
        message that it is a branch of.
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
        self._set_note(message, "sending …")
        self.view.show_conversation()
        kept = self.store.put(conversation, message)
        return self._run_answer(self.running, asyncio.wrap_future(kept))

    def regenerate(self, message: Message | None = None) -> Continuation:
        """Answer a message again; for an answer, the message before it; for None, the last one.
        Raises UsageError."""
        self.require_idle()
        conversation = self.conversation
        found = message or conversation.messages.get(conversation.tip or "")
        if found is not None and found.role == ASSISTANT:
            found = conversation.messages.get(found.parent or "")
        if found is None:
            raise UsageError("There is no message to answer yet. Write one.")
        # Messages below the old answer are no longer shown.
        conversation.tip = found.id
        self.running = Answer(conversation, found.id)
        self.view.show_conversation()
        return self._run_answer(self.running)

    def branch(
        self, step: int = 1, message: Message | None = None, *, number: int | None = None
    ) -> None:
        """Show a neighbouring branch of a message, or the one with a `number` (from 1). `message`:
        None for the last one with branches. Raises UsageError."""
        self.require_idle()
        conversation = self.conversation
        for one in [message] if message else reversed(conversation.path()):
            siblings = conversation.siblings(one.id)
            if len(siblings) > 1:
                break
        else:
            raise UsageError("There are no branches here. Answer again (r), or edit (e).")
        at = siblings.index(one) + step if number is None else number - 1
        if not 0 <= at < len(siblings):
            raise UsageError(f"This is the {'first' if at < 0 else 'last'} branch.")
        conversation.select(siblings[at].id)
        self.store.put(conversation)
        self.view.show_conversation()

    def stop(self) -> None:
        running = self.running
        if running is not None and not running.submitted:
            # Its message is still being written, and was not passed to the engine yet.
            self._set_note(running.conversation.messages[running.to], STOPPED_EARLY)
            self._clear_running()
        self.engine.stop()

    def begin(self, conversation: Conversation) -> None:
        """Show another conversation. A running answer continues in its own."""
        running = self.running
        if running is not None and running.conversation.id == conversation.id:
            conversation = running.conversation
        self.conversation = conversation
        self.view.show_conversation()

    def drop_oldest(self) -> Continuation:
        self._dropping.add(self.conversation.id)
        return self.regenerate()

    def configure(self, *, of: Conversation | None = None, **settings: object) -> None:
        """Set fields of a conversation, by default the one that is shown."""
        conversation = of or self.conversation
        for name, value in settings.items():
            setattr(conversation, name, value)
        if conversation.messages:
            self.store.put(conversation)

    async def ask_for_title(self) -> None:
        """Let the model generate a title. Raises UsageError."""
        self.require_idle()
        conversation = self.conversation
        if not conversation.messages:
            raise UsageError("There is nothing to name yet. Write a message.")
        self.view.show_notice("The model is writing a title.")
        # After the conversation, so that the next message can reuse the cache.
        messages = [*conversation.for_model(), {"role": USER, "content": TITLE_PROMPT}]
        sampling = commands.sampling_params(temperature=0.0)
        answer = Answer(conversation, conversation.tip or "")
        self._titling = True
        try:
            with suppress(Cancelled):
                await self.engine.answer(answer, messages, sampling, TITLE_TOKENS)
        finally:
            self._titling = False
        answer.take()
        title = title_from(answer.text) if answer.finish_reason == "stop" else NEW
        if title == NEW or title.startswith("<"):
            self.view.show_notice("The model found no title. Name it with /title TEXT.")
            return
        self.configure(of=conversation, title=title.strip("\"'*. "), titled_by=BY_MODEL)
        self.view.show_conversation()

    def forget(self, conversation: str) -> None:
        """Stop all work on a conversation that is about to be deleted."""
        if self.running is not None and self.running.conversation.id == conversation:
            self.stop()
        self.engine.forget(conversation)

    def leave(self) -> None:
        """Write an unfinished answer when the chat ends."""
        running = self.running
        if running is not None and running.message is not None:
            running.finish(running.message, STOPPED, "cancelled")
            self.store.put(running.conversation, running.message)

    def tick(self, *, spans: bool) -> Figures | None:
        """Process the progress of the running answer, with its spans if `spans`; returns its
        figures, None if there is none."""
        running = self.running
        if running is None or running.message is None:
            return None
        if running.take(spans=spans):
            running.message.note = None
            self.view.message_changed(running.message)
            if monotonic() - running.kept >= KEEP_EVERY:
                running.kept = monotonic()
                self.store.streaming(running.conversation, running.message)
        return running.meter.figures()

    @property
    def shown_answer(self) -> Answer | None:
        """The running answer, if it belongs to the shown conversation."""
        running = self.running
        return running if running and running.conversation is self.conversation else None

    @property
    def busy(self) -> bool:
        """Whether there is work that `stop` ends."""
        return self.running is not None or self._titling

    def require_idle(self) -> None:
        """Raise a UsageError while an answer is running."""
        if self.running is not None:
            raise UsageError("An answer is still running. Wait for it, or stop it with Esc.")

    # Continuations

    async def _finish_opening(self, opening: asyncio.Future[OpenPair]) -> None:
        try:
            self.opened = await opening
        except LocalspecError as error:
            self.opened = self.engine.opened
            why = "" if isinstance(error, Cancelled) else describe(error)[0]
            self.unopened = "" if self.opened else why
            if why and (
                self.opened or self.conversation.messages
            ):  # else the welcome screen has it
                stays = f" {self.opened.model} stays open." if self.opened else ""
                self.view.show_notice(f"{why}{stays}", error=True)
            self.view.working(None)
            return
        self.unopened = ""
        self.view.working(None)
        for notice in self.opened.notices:
            self.view.show_notice(notice)

    async def _run_answer(self, running: Answer, sent: asyncio.Future[bool] | None = None) -> None:
        """Generate an answer, and write it to the history. `sent`: the write of its message."""
        if sent is not None:
            # If it cannot be written, the store reports why, and the conversation continues.
            await asyncio.shield(sent)
        if self.running is not running:  # stopped meanwhile
            return
        conversation, failure = running.conversation, None
        prompt = conversation.messages[running.to]
        running.submitted = True
        if self._titling:
            self.engine.stop()  # a title can wait
        waits = self.opened is None or self._comparing
        self._set_note(prompt, "waiting for the model …" if waits else None)
        self.view.answering(True)
        try:
            await self.engine.answer(
                running,
                conversation.for_model(upto=running.to),
                # A conversation from a file may have invalid values.
                commands.sampling_params(**conversation.sampling),
                conversation.max_tokens,
                "drop_oldest" if conversation.id in self._dropping else "error",
                records=self.preferences.record,
                progress=lambda doing: self._set_note(running.message or prompt, doing),
                on_begin=partial(self._begin_answer, running),
            )
        except Cancelled:
            pass
        except LocalspecError as error:
            failure = error
        overflows = False
        if running.message is not None:
            self._complete_answer(running, running.message, failure)
        elif failure is None:
            self._set_note(prompt, STOPPED_EARLY)
        else:
            # Only if there are earlier turns that are not dropped yet.
            overflows = isinstance(failure, ContextOverflow) and (
                prompt.parent is not None and conversation.id not in self._dropping
            )
            if self.opened is None:
                prompt.state = UNSENT
                self.store.put(conversation, prompt)
            note = f"✗ {describe(failure)[0]} {self.unopened}".rstrip()
            self._set_note(prompt, None if overflows else note)
        self._clear_running()
        if overflows:
            await self.view.overflowed(conversation, str(failure))
        elif failure is not None and self.opened is not None:  # else the message's note is enough
            self.view.show_notice(describe(failure)[0], error=True)
        elif running.message is not None:
            await self._follow_up(running, running.message)

    def _begin_answer(self, running: Answer) -> None:
        conversation = running.conversation
        self._set_note(conversation.messages[running.to], None)
        conversation.model, conversation.draft = running.model, running.draft
        for prompt in conversation.path_to(running.to):
            if prompt.state == UNSENT:
                prompt.state = COMPLETE
                self.store.put(conversation, prompt)
        shown = conversation is self.conversation and conversation.tip == running.to
        model, draft = running.model, running.draft
        running.message = message = conversation.add(
            ASSISTANT, "", parent=running.to, state=STREAMING, model=model, draft=draft
        )
        message.rejected = running.provenance.rejected
        self.store.streaming(conversation, message)
        if shown:
            self.view.show_conversation()

    def _complete_answer(
        self, running: Answer, message: Message, failure: LocalspecError | None
    ) -> None:
        finish = running.finish_reason or (None if failure else "cancelled")
        state = FAILED if failure else STOPPED if finish == "cancelled" else COMPLETE
        figures = running.finish(message, state, finish)
        message.note = None
        if failure is not None:
            message.stats = {**figures.as_dict(), "error": describe(failure)[0]}
        self.store.put(running.conversation, message)
        self.view.message_changed(message)
        for notice in figures.notices:
            self.view.show_notice(notice)

    async def _follow_up(self, answer: Answer, message: Message) -> None:
        """Compare the answer with stock llama.cpp; record it, and learn the conversation, if these
        are turned on."""
        conversation, keeping = answer.conversation, []
        self._comparing = message.state == COMPLETE
        with suppress(LocalspecError):  # an internal error, which is logged
            if self._comparing and await self.engine.compare():
                message.stats = answer.meter.figures().as_dict()
                self.store.put(conversation, message)
                self.view.message_changed(message)
                if self.running is None:
                    self.view.answering(False)
        self._comparing = False
        if answer.logprobs:
            recording = self.engine.record(answer)
            keeping.append(("This answer was not recorded", recording))
        if self.preferences.learn:
            texts = [message.content for message in conversation.messages.values()]
            learning = self.engine.learn(conversation.id, [text for text in texts if text])
            keeping.append(("This conversation was not learned", learning))
        for failed, kept in keeping:
            (error,) = await asyncio.gather(kept, return_exceptions=True)
            if isinstance(error, LocalspecError) and not isinstance(error, Cancelled):
                self.view.show_notice(f"{failed}: {describe(error)[0]}", error=True)

    def _clear_running(self) -> None:
        self.running = None
        self.view.answering(False)

    def _set_note(self, message: Message, note: str | None) -> None:
        if note or message.note:
            message.note = note
            self.view.message_changed(message)
