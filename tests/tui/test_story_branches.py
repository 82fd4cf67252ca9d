"""Answering again, editing, and the branches that come of it."""

from __future__ import annotations

import pytest

from tests.tui.pilots import Chat, chat
from tests.tui.scripted import Scripted

pytestmark = pytest.mark.nightly


async def at_conversation(shown: Chat) -> None:
    """The focus on the conversation."""
    shown.app.transcript.focus()
    await shown.settle()


async def test_regenerate_makes_a_branch_and_the_one_shown_is_shown_next_time() -> None:
    async with chat(Scripted("One.", "Two.")) as shown:
        await shown.send("say a number")
        await shown.gets("Two.", "ctrl+r")
        assert shown.said == ["say a number", "Two."]
        assert "‹ 2/2 ›" in shown.text
        assert [m["content"] for m in shown.script.asked[1].messages] == ["say a number"]
        await at_conversation(shown)
        await shown.press("left")
        await shown.until(lambda: shown.says("One."))
        assert "‹ 1/2 ›" in shown.text
        assert "Two." not in shown.text
        await shown.press("right")
        await shown.until(lambda: shown.says("Two."))
        await shown.press("left")
        await shown.until(lambda: shown.says("One."))
    async with chat(size=(140, 40)) as shown:
        await shown.press("ctrl+f", "enter", "enter")
        await shown.until(lambda: shown.said)
        assert shown.said == ["say a number", "One."]


async def test_an_earlier_answer_again_leaves_what_followed_on_its_branch() -> None:
    async with chat(Scripted("One.", "More.", "Another.")) as shown:
        await shown.send("first")
        await shown.send("second")
        await at_conversation(shown)
        await shown.press("up", "up", "up")
        selected = shown.app.transcript.selected
        assert selected is not None
        assert selected.content == "One."
        await shown.gets("Another.", "r")
        await shown.press("escape")
        assert shown.said == ["first", "Another."]
        await shown.command("/branch previous")
        await shown.until(lambda: shown.says("More."))
        assert shown.said == ["first", "One.", "second", "More."]


async def test_edit_and_resend_as_a_branch() -> None:
    async with chat(Scripted("Rome.", "Paris.")) as shown:
        await shown.send("capital of Italy")
        await shown.command("/edit")
        assert shown.app.prompt.text == "capital of Italy"
        assert "editing: Enter sends it as a branch" in shown.text
        await shown.press(*["backspace"] * 5)
        await shown.type("France")
        await shown.gets("Paris.", "enter")
        assert shown.said == ["capital of France", "Paris."]
        assert [m["content"] for m in shown.script.asked[1].messages] == ["capital of France"]
        assert "editing" not in shown.text
        await shown.command("/branch previous")
        await shown.until(lambda: shown.says("Rome."))
        assert shown.said == ["capital of Italy", "Rome."]
        await shown.command("/branch 2")
        await shown.until(lambda: shown.says("Paris."))


async def test_where_there_are_no_branches_a_sentence_says_so() -> None:
    async with chat() as shown:
        await shown.send("hello")
        await shown.gets("Answer 2.", "ctrl+r")
        await shown.command("/branch next")
        assert shown.errors()[-1] == "This is the last of the branches."
        await shown.command("/branch 5")
        assert shown.errors()[-1] == "This is the last of the branches."
        await shown.command("/branch 1")
        await shown.until(lambda: shown.says("Answer 1."))
        await shown.command("/branch previous")
        assert shown.errors()[-1] == "This is the first of the branches."
