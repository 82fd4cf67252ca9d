"""What goes on between user, history and model, without a screen."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

import pytest

from localspec import Chunk, GenerationStats
from localspec.chat.conversation import (
    ASSISTANT,
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
from localspec.decoding.interfaces import TARGET, Draft, Plan, Step
from localspec.decoding.tree import TokenTree
from localspec.errors import UsageError
from localspec.tui.session.answer import ShownAnswer
from localspec.tui.session.conversing import Conversing
from localspec.tui.session.events import (
    AnswerBegan,
    AnswerEnded,
    AnswerFailed,
    Measuring,
    NotOpened,
    Opened,
    OpeningProgress,
    Overflowed,
    PairReference,
    PromptProgress,
    Question,
)

pytestmark = pytest.mark.nightly

OPENED = Opened(PairReference("big", "small"), "Big", "/big", 100, "Small", "/small", 10, None, 512)


@dataclass
class Screen:
    """Remembers what it was told."""

    shown: int = 0
    changed: list[Message] = field(default_factory=list)
    doing: list[str | None] = field(default_factory=list)
    answers: list[bool] = field(default_factory=list)
    overflows: list[str] = field(default_factory=list)
    told: list[tuple[str, bool]] = field(default_factory=list)

    def show_conversation(self) -> None:
        self.shown += 1

    def message_changed(self, message: Message) -> None:
        self.changed.append(message)

    def working(self, doing: str | None) -> None:
        self.doing.append(doing)

    def answering(self, begins: bool) -> None:
        self.answers.append(begins)

    def overflowed(self, error: str) -> None:
        self.overflows.append(error)

    def tell(self, text: str, *, error: bool = False) -> None:
        self.told.append((text, error))


@dataclass
class Book:
    """A history that has written a message when the test says so."""

    sendings: list[Future[bool]] = field(default_factory=list)
    growing: list[str] = field(default_factory=list)
    finished: list[Message] = field(default_factory=list)
    saves: list[Conversation] = field(default_factory=list)

    def sent(self, conversation: Conversation, message: Message) -> Future[bool]:
        self.sendings.append(Future())
        return self.sendings[-1]

    def streaming(self, conversation_id: str, message: Message) -> None:
        self.growing.append(message.content)

    def done(self, conversation: Conversation, message: Message) -> Future[bool]:
        self.finished.append(message)
        return Future()

    def saved(self, conversation: Conversation) -> Future[bool]:
        self.saves.append(conversation)
        return Future()


@dataclass
class Desk:
    """An engine that answers when the test says so."""

    asked: list[Question] = field(default_factory=list)
    stops: int = 0
    learned: list[tuple[str, list[str]]] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)

    def ask(self, question: Question) -> None:
        self.asked.append(question)

    def stop(self) -> None:
        self.stops += 1

    def learn(self, conversation: str, texts: Sequence[str]) -> None:
        self.learned.append((conversation, list(texts)))

    def forget(self, conversation: str) -> None:
        self.forgotten.append(conversation)


class Chat:
    """All of it together."""

    def __init__(self) -> None:
        self.screen, self.book, self.desk = Screen(), Book(), Desk()
        self.it = Conversing(self.screen, self.book, self.desk)
        self.it.on_event(OPENED)

    async def send(self, text: str, *, instead_of: str | None = None, kept: bool = True) -> str:
        """Up to where the engine is asked; returns the message's id."""
        sending = asyncio.ensure_future(self.it.send(text, instead_of=instead_of))
        await asyncio.sleep(0)
        self.book.sendings[-1].set_result(kept)
        await sending
        assert self.it.running is not None
        return self.it.running.to

    def begin(self) -> ShownAnswer:
        answer = ShownAnswer(
            self.desk.asked[-1].message,
            GenerationStats(),
            plain_seconds=lambda _: 0.1,
            token_bytes=lambda token: bytes([token]),
            context_length=512,
        )
        self.it.on_event(AnswerBegan(answer))
        return answer

    def say(self, answer: ShownAnswer, text: str) -> None:
        for character in text.encode():
            plan = Plan(None, reason="none")
            draft = Draft(TokenTree())
            step = Step([character], [TARGET], plan, draft, [], [], 0, 0.1, 0.1, 0.0)
            answer.put(Chunk(chr(character), (character,), (TARGET,), step))

    async def answered(self, question: str, text: str) -> None:
        to = await self.send(question)
        self.say(self.begin(), text)
        self.it.on_event(AnswerEnded(to, text, "stop"))

    @property
    def path(self) -> list[tuple[str, str, str]]:
        return [(m.role, m.content, m.state) for m in self.it.conversation.path()]


async def test_a_message_counts_as_sent_once_it_is_kept() -> None:
    chat = Chat()
    sending = asyncio.ensure_future(chat.it.send("Hello"))
    await asyncio.sleep(0)
    (message,) = chat.it.conversation.path()
    assert chat.it.notes == {message.id: "sending …"}
    assert chat.desk.asked == []
    chat.book.sendings[0].set_result(True)
    await sending
    assert chat.it.notes == {}
    (question,) = chat.desk.asked
    assert question.message == message.id
    assert question.messages == [{"role": "user", "content": "Hello"}]
    assert question.overflow == "error"
    assert chat.screen.answers == [True]


async def test_what_cannot_be_kept_is_answered_all_the_same() -> None:
    chat = Chat()
    await chat.send("Hello", kept=False)
    assert len(chat.desk.asked) == 1


async def test_an_answer_from_beginning_to_end() -> None:
    chat = Chat()
    to = await chat.send("Hello")
    answer = chat.begin()
    assert chat.path[1:] == [(ASSISTANT, "", STREAMING)]
    chat.say(answer, "Hi")
    figures = chat.it.tick(spans=False)
    assert figures is not None
    assert figures.context_used == 1
    assert chat.path[1:] == [(ASSISTANT, "Hi", STREAMING)]
    message = chat.it.conversation.path()[1]
    assert message.spans is None
    chat.say(answer, " you")
    assert chat.it.tick(spans=True) is not None
    assert message.spans == [(6, TARGET)]
    chat.it.on_event(AnswerEnded(to, "Hi you", "stop"))
    assert chat.path[1:] == [(ASSISTANT, "Hi you", COMPLETE)]
    assert (message.model, message.draft, message.finish_reason) == ("Big", "Small", "stop")
    assert message.stats is not None
    assert message.stats["context_length"] == 512
    assert chat.book.finished == [message]
    assert chat.screen.answers == [True, False]
    assert chat.it.running is None
    assert chat.it.tick(spans=True) is None


async def test_the_engine_has_the_growing_answer_kept() -> None:
    chat = Chat()
    await chat.send("Hello")
    keep = chat.desk.asked[0].keep
    keep("too early")
    assert chat.book.growing == []
    chat.begin()
    keep("Hi th")
    assert chat.book.growing == ["", "Hi th"]


async def test_one_at_a_time() -> None:
    chat = Chat()
    await chat.send("Hello")
    with pytest.raises(UsageError, match="An answer is still coming"):
        chat.it.regenerate()
    with pytest.raises(UsageError, match="An answer is still coming"):
        chat.it.branch(1)
    with pytest.raises(UsageError, match="An answer is still coming"):
        await chat.it.send("Again")
    assert chat.path == [(USER, "Hello", COMPLETE)]


async def test_stop_keeps_what_there_is() -> None:
    chat = Chat()
    to = await chat.send("Hello")
    chat.say(chat.begin(), "Hi th")
    chat.it.stop()
    assert chat.desk.stops == 1
    chat.it.on_event(AnswerEnded(to, "Hi th", "cancelled"))
    assert chat.path[1:] == [(ASSISTANT, "Hi th", STOPPED)]
    assert chat.book.finished[0].state == STOPPED


async def test_stop_before_anything_came() -> None:
    chat = Chat()
    to = await chat.send("Hello")
    chat.it.on_event(AnswerEnded(to, "", "cancelled"))
    assert chat.path == [(USER, "Hello", COMPLETE)]
    assert chat.it.notes == {to: "■ stopped before it was answered"}
    await chat.send("Hello?")
    assert chat.desk.asked[-1].messages == [{"role": "user", "content": "Hello\n\nHello?"}]


async def test_a_failure_is_told_and_kept_with_the_answer() -> None:
    chat = Chat()
    to = await chat.send("Hello")
    chat.say(chat.begin(), "Hi")
    chat.it.on_event(AnswerFailed(to, "Hi", "It broke."))
    assert chat.path[1:] == [(ASSISTANT, "Hi", FAILED)]
    stats = chat.book.finished[0].stats
    assert stats is not None
    assert stats["error"] == "It broke."
    assert chat.screen.told == [("It broke.", True)]
    assert chat.it.running is None


async def test_a_failure_before_anything_came() -> None:
    chat = Chat()
    to = await chat.send("Hello")
    chat.it.on_event(AnswerFailed(to, "", "It broke."))
    assert chat.it.notes == {to: "✗ It broke."}
    assert chat.book.finished == []


async def test_notes_while_it_takes_its_time() -> None:
    chat = Chat()
    chat.it.opened = None
    to = await chat.send("Hello")
    assert chat.it.notes == {to: "waiting for the model …"}
    chat.it.on_event(PromptProgress(to, 1, 4))
    assert chat.it.notes == {to: "reading the prompt: 25%"}
    answer = chat.begin()
    message = chat.it.conversation.tip
    assert chat.it.notes == {}
    chat.it.on_event(Measuring(to))
    assert message is not None
    assert chat.it.notes[message].startswith("measuring what a pass costs here")
    chat.say(answer, "Hi")
    chat.it.tick(spans=False)
    assert chat.it.notes == {}


async def test_events_about_other_questions_change_nothing() -> None:
    chat = Chat()
    to = await chat.send("Hello")
    for event in (
        AnswerEnded("other", "x", "stop"),
        AnswerFailed("other", "", "x"),
        PromptProgress("other", 1, 2),
    ):
        chat.it.on_event(event)
    assert chat.it.running is not None
    chat.it.on_event(AnswerEnded(to, "", "cancelled"))
    chat.it.on_event(AnswerEnded(to, "late", "stop"))
    assert chat.path == [(USER, "Hello", COMPLETE)]


async def test_an_answer_goes_on_in_its_own_conversation() -> None:
    chat = Chat()
    to = await chat.send("Hello")
    first = chat.it.conversation
    chat.it.begin(Conversation())
    chat.say(chat.begin(), "Hi")
    assert chat.it.comes_here is None
    assert chat.path == []
    # The history has the same conversation as another object, without what came since.
    chat.it.begin(Conversation(id=first.id))
    assert chat.it.conversation is first
    assert chat.it.comes_here is not None
    chat.it.on_event(AnswerEnded(to, "Hi", "stop"))
    assert chat.path == [(USER, "Hello", COMPLETE), (ASSISTANT, "Hi", COMPLETE)]


async def test_answering_again_makes_a_branch() -> None:
    chat = Chat()
    await chat.answered("Hello", "Hi")
    answer = chat.it.conversation.tip
    chat.it.regenerate(answer)
    assert chat.path == [(USER, "Hello", COMPLETE)]
    chat.say(chat.begin(), "Oh")
    chat.it.on_event(AnswerEnded(chat.desk.asked[-1].message, "Oh", "stop"))
    assert chat.path[1:] == [(ASSISTANT, "Oh", COMPLETE)]
    chat.it.branch(-1)
    assert chat.it.conversation.tip == answer
    with pytest.raises(UsageError, match="This is the first of the branches"):
        chat.it.branch(-1)
    chat.it.branch(1)
    with pytest.raises(UsageError, match="This is the last of the branches"):
        chat.it.branch(1)
    assert chat.path[1:] == [(ASSISTANT, "Oh", COMPLETE)]


async def test_editing_makes_a_branch_with_the_old_files() -> None:
    chat = Chat()
    await chat.answered("Hello", "Hi")
    old = chat.it.conversation.path()[0]
    old.attachments = [Attachment("a.txt", "A")]
    to = await chat.send("Hello!", instead_of=old.id)
    assert chat.path == [(USER, "Hello!", COMPLETE)]
    assert chat.it.conversation.messages[to].attachments == old.attachments
    assert [m.content for m in chat.it.conversation.siblings(to)] == ["Hello", "Hello!"]
    assert "A" in str(chat.desk.asked[-1].messages[0]["content"])


async def test_nothing_to_answer_and_no_branches() -> None:
    chat = Chat()
    with pytest.raises(UsageError, match="There is no message to answer yet"):
        chat.it.regenerate()
    await chat.answered("Hello", "Hi")
    with pytest.raises(UsageError, match="There are no branches here"):
        chat.it.branch(1)


async def test_a_full_context_is_offered_to_be_emptied() -> None:
    chat = Chat()
    to = await chat.send("Hello")
    chat.it.on_event(Overflowed(to, "Too long.", 600, 512))
    assert chat.screen.overflows == ["Too long."]
    assert chat.it.running is None
    chat.it.drop_oldest()
    assert chat.desk.asked[-1].overflow == "drop_oldest"
    chat.it.on_event(AnswerEnded(to, "", "cancelled"))
    # From now on, in this conversation alone.
    await chat.send("More")
    assert chat.desk.asked[-1].overflow == "drop_oldest"
    chat.it.on_event(AnswerEnded(chat.desk.asked[-1].message, "", "cancelled"))
    chat.it.begin(Conversation())
    await chat.send("Else")
    assert chat.desk.asked[-1].overflow == "error"


async def test_settings_hold_for_the_next_answer() -> None:
    chat = Chat()
    chat.it.configure(system="Be brief.", sampling={"temperature": 0.0}, max_tokens=7)
    assert chat.book.saves == []  # there is no conversation yet
    await chat.send("Hello")
    question = chat.desk.asked[0]
    assert question.messages[0] == {"role": "system", "content": "Be brief."}
    assert (question.sampling.temperature, question.max_tokens) == (0.0, 7)


@pytest.mark.parametrize("sampling", [{"temperature": -1.0}, {"top_p": "much"}])
async def test_settings_from_a_file_that_cannot_be_meant(sampling: dict[str, float]) -> None:
    chat = Chat()
    chat.it.conversation.sampling = sampling
    sending = asyncio.ensure_future(chat.it.send("Hello"))
    await asyncio.sleep(0)
    chat.book.sendings[-1].set_result(True)
    await sending
    assert chat.desk.asked == []
    assert chat.it.running is None
    assert chat.screen.told[-1][1]
    (note,) = chat.it.notes.values()
    assert note.startswith("✗ ")


def test_opening() -> None:
    screen, book = Screen(), Book()
    it = Conversing(screen, book, Desk())
    it.on_event(OpeningProgress("loading the model", 0.256))
    it.on_event(OpeningProgress("looking at the files", None))
    it.on_event(
        NotOpened(PairReference("none"), "There is no file none.", cancelled=False, still=None)
    )
    assert screen.doing == ["loading the model: 26%", "looking at the files", None]
    assert screen.told == [("There is no file none.", True)]
    assert it.opened is None
    it.on_event(OPENED)
    assert it.conversation.model is None  # it has answered nothing here
    it.on_event(
        NotOpened(PairReference("none"), "There is no file none.", cancelled=False, still=OPENED)
    )
    assert screen.told[-1] == ("There is no file none. Big stays open.", True)
    it.on_event(NotOpened(PairReference("none"), "Stopped.", cancelled=True, still=OPENED))
    assert len(screen.told) == 2
    assert it.opened == OPENED


async def test_what_no_model_is_open_for_is_kept_as_not_sent() -> None:
    chat = Chat()
    chat.it.opened = None
    asked = await chat.send("Hello")
    assert chat.path == [(USER, "Hello", UNSENT)]
    chat.it.on_event(AnswerFailed(asked, "", "No model is open."))
    assert [(one.id, one.state) for one in chat.book.finished] == [(asked, UNSENT)]
    chat.it.on_event(OPENED)
    chat.it.regenerate()
    chat.begin()
    assert chat.path[0] == (USER, "Hello", COMPLETE)
    assert [(one.id, one.state) for one in chat.book.finished[1:]] == [(asked, COMPLETE)]


async def test_a_conversation_has_the_name_of_what_answered_it_last() -> None:
    chat = Chat()
    await chat.answered("Hello", "Hi")
    assert (chat.it.conversation.model, chat.it.conversation.draft) == ("Big", "Small")
    assert chat.book.saves[-1].model == "Big"
    chat.it.on_event(replace(OPENED, model="Other"))
    assert chat.it.conversation.model == "Big"


async def test_renaming() -> None:
    chat = Chat()
    await chat.answered("Hello", "Hi")
    saves = len(chat.book.saves)
    chat.it.rename("Greetings")
    assert (chat.it.conversation.title, chat.it.conversation.titled_by) == ("Greetings", "user")
    assert len(chat.book.saves) == saves + 1


async def test_stopped_on_its_way_to_the_disk() -> None:
    chat = Chat()
    sending = asyncio.ensure_future(chat.it.send("Hello"))
    await asyncio.sleep(0)
    chat.it.stop()
    assert chat.it.running is None
    chat.book.sendings[-1].set_result(True)
    await sending
    assert chat.desk.asked == []
    assert list(chat.it.notes.values()) == ["■ stopped before it was answered"]
    await chat.send("Again")
    assert len(chat.desk.asked) == 1


async def test_the_model_names_the_conversation_unless_something_is_sent() -> None:
    chat = Chat()
    with pytest.raises(UsageError, match="nothing to name"):
        chat.it.ask_for_title()
    await chat.send("Hello fox")
    chat.begin()
    asked = chat.desk.asked[-1].message
    chat.it.on_event(AnswerEnded(asked, "Hi", "stop"))
    chat.it.ask_for_title()
    assert chat.desk.asked[-1].messages[-1]["role"] == "user"
    chat.it.on_event(AnswerEnded("title", '"A Fox Says Hello."', "stop"))
    assert chat.it.conversation.title == "A Fox Says Hello"
    assert chat.it.conversation.titled_by == "model"
    # One that was cut off, or thinks aloud, is none.
    for text, reason in (("Half a", "length"), ("<think>well", "stop"), ("", "cancelled")):
        chat.it.ask_for_title()
        chat.it.on_event(AnswerEnded("title", text, reason))
        assert chat.it.conversation.title == "A Fox Says Hello"
    stops = chat.desk.stops
    chat.it.ask_for_title()
    await chat.send("More")
    assert chat.desk.stops == stops + 1


async def test_conversations_are_learned_if_that_was_asked_for() -> None:
    chat = Chat()
    await chat.answered("Why?", "Because.")
    assert chat.desk.learned == [], "nobody asked for it"
    chat.it.learns = True
    await chat.answered("And?", "So.")
    conversation = chat.it.conversation.id
    assert chat.desk.learned == [(conversation, ["Why?", "Because.", "And?", "So."])]
    chat.it.forget(conversation)
    assert chat.desk.forgotten == [conversation]


async def test_answers_are_recorded_if_that_was_asked_for() -> None:
    chat = Chat()
    await chat.answered("Why?", "Because.")
    chat.it.records = True
    await chat.answered("And?", "So.")
    chat.it.ask_for_title()
    asked = [question.record_of for question in chat.desk.asked]
    assert asked == [None, chat.it.conversation.id, None], "not before, and no title"


async def test_deleting_stops_the_answer_that_comes() -> None:
    chat = Chat()
    chat.it.learns = True
    await chat.send("Why?")
    chat.begin()
    chat.it.forget("another")
    assert chat.desk.stops == 0
    chat.it.forget(chat.it.conversation.id)
    assert chat.desk.stops == 1
