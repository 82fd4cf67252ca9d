"""The list of conversations: search, open, begin and delete, also during an answer."""

from contextlib import closing

import pytest
from textual.widgets import Input, OptionList

from localspec.chat.conversation import Conversation
from localspec.history.history import History
from localspec.retrieval import manifest
from localspec.tui.app import ChatApp
from localspec.tui.screens.dialogs import QuestionScreen
from tests.history.histories import conversation_of, store
from tests.tui.pilots import answering, chat
from tests.tui.scripted import Hold, Reply, Script

pytestmark = pytest.mark.nightly

WIDE = (140, 40)


@pytest.fixture
def stored() -> list[Conversation]:
    """Two earlier conversations, the older one first."""
    found = [
        conversation_of("Where do foxes sleep", "In a den.", created=1_700_000_000.0),
        conversation_of("What do owls eat", "Mostly voles and mice.", created=1_700_000_001.0),
    ]
    store(found)
    return found


def titles() -> list[str]:
    with closing(History()) as history:
        return [summary.title for summary in history.list()]


async def test_what_another_chat_does_is_listed(stored: list[Conversation]) -> None:
    async with chat(size=WIDE) as shown:
        shown.app.open_conversation(stored[0].id, None)
        await shown.until(lambda: shown.has("In a den."))
        assert [line[0] + line.split()[-1] for line in shown.listed()] == [" eat", "▌sleep"]
        with closing(History()) as other:
            other.delete([stored[1].id])
        shown.app.open_conversation(stored[1].id, None)
        await shown.until_notice("The conversation is no longer in the history.")
        await shown.until(lambda: len(shown.listed()) == 1)
        store([conversation_of("What do crows eat", "Nearly all.")])
        await shown.press("ctrl+b", "ctrl+b")
        await shown.until(lambda: len(shown.listed()) == 2)
        assert shown.listed()[0].endswith("What do crows eat")
        shown.app.prompt.focus()
        await shown.command("/title No crows", "/search crows")
        hits = ["No crows", "What do crows eat\nWhat do crows eat"]  # a title is found once
        await shown.until(lambda: shown.listed() == hits)


async def test_search_and_open_what_was_found(stored: list[Conversation]) -> None:
    async with chat(size=WIDE) as shown:
        await shown.press("ctrl+f")
        assert shown.app.focused is shown.app.sidebar.query_one(Input)
        shown.burst("voles")
        await shown.until(lambda: len(shown.listed()) == 1, "one hit")
        assert "What do owls eat" in shown.listed()[0]
        assert "Mostly voles and mice." in shown.listed()[0]
        await shown.press("enter", "enter")
        await shown.until(lambda: shown.texts, "the conversation")
        assert shown.texts == ["What do owls eat", "Mostly voles and mice."]
        assert shown.selected == "Mostly voles and mice."
        assert shown.app.prompt.has_focus


async def test_the_empty_screen_offers_the_last_conversation(stored: list[Conversation]) -> None:
    async with chat(size=(80, 24)) as shown:
        await shown.until(lambda: "Enter continues What do owls eat" in shown.text)
        await shown.until(lambda: "⏎ Continue" in shown.text.splitlines()[-1])
        await shown.type("x")
        await shown.until(lambda: "⏎ Send" in shown.text.splitlines()[-1])
        await shown.press("backspace", "enter")
        await shown.until(lambda: shown.has("Mostly voles and mice."))
        await shown.press("enter")  # nothing is written, and nothing more to continue
        assert shown.texts == ["What do owls eat", "Mostly voles and mice."]


async def test_the_last_conversation_is_continued(stored: list[Conversation]) -> None:
    script = Script()
    app = ChatApp(engine=script.engine, resume=True, max_tokens=7)
    async with chat(script, app=app, size=(80, 24)) as shown:
        await shown.until(lambda: shown.has("Mostly voles and mice."))
        await shown.send("And else?")
        assert shown.texts[0] == "What do owls eat"
        assert script.asked[0].max_tokens == 7


async def test_a_hit_on_a_hidden_branch_shows_that_branch() -> None:
    async with chat(Script("The first heron.", "The second crane."), size=WIDE) as shown:
        await shown.send("a bird")
        await shown.press_for("The second crane.", "ctrl+r")
        await shown.press("ctrl+n")
        await shown.command("/search heron")
        await shown.until(lambda: len(shown.listed()) == 1 and "heron" in shown.listed()[0])
        await shown.press("enter", "enter")
        await shown.until(lambda: shown.has("The first heron."))


async def test_delete_asks_first(stored: list[Conversation]) -> None:
    async with chat(size=WIDE) as shown:
        await shown.command("/search owls")
        await shown.until(lambda: "owls" in shown.listed()[0])
        await shown.press("enter", "enter")
        await shown.until(lambda: shown.texts)
        await shown.command("/delete")
        await shown.until(lambda: isinstance(shown.app.screen, QuestionScreen))
        assert "Delete this conversation? This cannot be undone." in shown.text
        await shown.press("escape")
        await shown.command("/delete")
        await shown.choose("Keep it")
        assert shown.texts
        await shown.command("/delete")
        await shown.choose("Delete it")
        await shown.until(lambda: not shown.texts)
        assert not shown.errors()
        await shown.until(lambda: shown.listed() == ["Nothing found"])  # the search goes on
        await shown.press("ctrl+f")
        await shown.resize(60, 20)
        assert shown.app.focused is shown.app.prompt
    assert titles() == ["Where do foxes sleep"]


async def test_deleting_the_conversation_that_is_being_answered() -> None:
    manifest.root().parent.mkdir(parents=True)
    manifest.root().write_text("in the way of what was learned")
    async with answering("one two three", 1, size=WIDE) as (shown, _):
        await shown.command("/delete")
        await shown.choose("Delete it")
        await shown.until(lambda: not shown.texts)
        await shown.until_answered()
        await shown.until(lambda: shown.listed() == ["No conversations yet"])
        await shown.send("anew")
        assert shown.texts == ["anew", "Answer 2."]
    assert titles() == ["anew"]


async def test_an_answer_goes_on_while_another_conversation_is_shown() -> None:
    async with answering("one two three four", 2, size=WIDE) as (shown, hold):
        begun = shown.app.chat_session.conversation.id
        await shown.press("ctrl+n")
        assert shown.texts == []
        await shown.type("meanwhile")
        await shown.press("enter")
        await shown.until_notice("An answer is still running.")
        await shown.until_answered(hold)
        assert shown.texts == []
        await shown.press_for("meanwhile", "enter")
        shown.app.open_conversation(begun, None)
        await shown.until(lambda: shown.has("count"))
        assert shown.texts == ["count", "one two three four"]


async def test_a_title_from_the_model() -> None:
    endless = Reply("no end of words", {1: Hold()})
    script = Script("Hello.", '"A Polite Greeting."', endless, "Yes.", endless)
    async with chat(script, size=WIDE) as shown:
        await shown.command("/title", says="There is nothing to name yet.")
        await shown.send("hello")
        await shown.command("/title")
        await shown.until(lambda: shown.listed()[0].endswith("A Polite Greeting"))
        assert script.asked[1].last.startswith("Give our conversation a title")
        assert shown.texts == ["hello", "Hello."]
        await shown.command("/title Two\nlines")
        await shown.until(lambda: shown.listed()[0].endswith("Two lines"))
        assert shown.text.splitlines()[0].lstrip().startswith("Two lines")
        await shown.command("/title")
        await shown.until(lambda: len(script.asked) == 3)
        await shown.send("never mind")  # what is sent goes first
        assert shown.texts[-1] == "Yes."
        await shown.command("/title")
        await shown.until(lambda: len(script.asked) == 5)
        await shown.press("escape")
        await shown.until(lambda: str(shown.notices).count("The model found no title.") == 2)


async def test_the_list_goes_on_as_one_scrolls(monkeypatch: pytest.MonkeyPatch) -> None:
    store(conversation_of(f"number {n}", created=1_700_000_000.0 + n) for n in range(150))
    async with chat(size=WIDE) as shown:
        assert len(shown.listed()) == 100
        shown.app.sidebar.query_one(OptionList).focus()
        store([conversation_of("from another chat")])
        hold = Hold()
        monkeypatch.setattr(shown.app.store, "flush", lambda timeout: hold.wait())
        shown.app.sidebar.list()
        await shown.press("end")
        hold.release()
        await shown.until(lambda: len(shown.listed()) == 151)
        assert shown.listed()[0].endswith("from another chat")
        await shown.press("end")
        assert shown.listed()[-1].endswith("number 0")
