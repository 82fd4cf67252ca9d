"""Sending messages, stopping and regenerating answers, and the resulting branches."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing

import pytest
from textual import events

from localspec.chat.conversation import COMPLETE, STOPPED
from localspec.history.history import History
from localspec.tui.session.background_engine import PairReference
from tests.tui.pilots import Chat, answering, chat
from tests.tui.scripted import Hold, Script

pytestmark = pytest.mark.nightly


@asynccontextmanager
async def waiting_for_the_model(script: Script) -> AsyncIterator[tuple[Chat, Hold]]:
    """A message was sent while the model is held up loading."""
    loading = script.loading["slow.gguf"] = Hold()
    async with chat(script, pair=PairReference("slow.gguf"), ready=False) as shown:
        await shown.until(lambda: loading.reached)
        await shown.send("early", answered=False)
        await shown.until(lambda: "waiting for the model" in shown.text)
        yield shown, loading


async def test_keys_typed_at_once_all_arrive_before_enter_does() -> None:
    async with chat() as shown:
        shown.burst("quickly typed")
        shown.app.post_message(events.Key("enter", "\r"))
        shown.burst("next")
        await shown.until(lambda: shown.script.asked)
        await shown.until_answered()
        assert (shown.script.asked[0].last, shown.app.prompt.text) == ("quickly typed", "next")


async def test_a_message_sent_before_the_model_is_open_waits_for_it() -> None:
    async with waiting_for_the_model(Script("At last.")) as (shown, loading):
        await shown.press("f2")
        await shown.until_notice("The answer has not begun. Its figures come")
        await shown.until_answered(loading)
        assert shown.texts == ["early", "At last."]
        assert "waiting" not in shown.text


async def test_an_answer_that_repeats_itself_ends() -> None:
    endless = "It began well. " + "la la di " * 400
    async with chat(Script(endless, endless)) as shown:
        await shown.send("sing")
        assert shown.answer.content.startswith("It began well. la la di la la")
        assert 512 < len(shown.answer.content.split()) < 700
        assert shown.answer.state == COMPLETE
        await shown.until(lambda: "■ ended: the answer repeated itself." in shown.text)
        await shown.command("/set max_tokens 1000")  # who gives a limit wants that many
        await shown.press_for("sing", "ctrl+r")
        assert len(shown.answer.content.split()) == 1000
        assert "repeated itself" not in shown.text


async def test_stopping_while_a_model_loads_stops_what_waits_for_it() -> None:
    async with waiting_for_the_model(Script()) as (shown, _):
        await shown.press("escape")
        await shown.until_answered()
        assert shown.script.asked == []
        await shown.command("/model other.gguf")
        await shown.until_opened()
        await shown.send("again")
        assert shown.texts == ["early", "again", "Answer 1."]


async def test_what_was_sent_comes_back_with_the_arrows() -> None:
    async with chat() as shown:
        await shown.send("first", "second")
        await shown.type("begun")
        prompt = shown.app.prompt
        seen = []
        for key in ("up", "x", "up", "up", "down", "down"):
            await shown.press(key)
            seen.append(prompt.text)
        assert seen == ["second", "secondx", "first", "first", "secondx", "begun"]
        prompt.remember(["said", "/set"])  # whose completions do not take the arrows
        await shown.press("up", "up")
        assert prompt.text == "said"
        prompt.set_text("1👩\u200d👩\u200d👧2👍🏽🇩🇪🇫🇷e\u0301ที่3")
        await shown.press("left", *["backspace"] * 5, "left", "left", "delete")
        assert prompt.text == "123"
        prompt.set_text(long := "a line of several rows " * 20)
        await shown.press("up")
        assert prompt.text == long  # the row above
        assert prompt.cursor_location[1] < len(long)


async def test_escape_stops_and_keeps_the_partial_answer() -> None:
    async with answering("one two three four five six seven eight", 2) as (shown, _):
        await shown.until(lambda: "one two" in shown.text, "the answer so far")
        await shown.press("escape")
        await shown.until_answered()
        assert (shown.answer.state, shown.answer.content) == (STOPPED, "one two three four five ")
        assert "■ stopped" in shown.text
        conversation = shown.app.chat_session.conversation.id
        await shown.send("go on")
        read = [m["content"] for m in shown.script.asked[1].messages]
        assert read == ["count", "one two three four five ", "go on"]
    with closing(History()) as history:
        kept = history.load(conversation).path()
    said = [("count", COMPLETE), ("one two three four five ", STOPPED)]
    assert [(m.content, m.state) for m in kept[:2]] == said


async def test_stop_while_the_prompt_is_read() -> None:
    async with answering("never said", 0) as (shown, _):
        await shown.until(lambda: "reading the prompt: 25%" in shown.text)
        await shown.press("escape")
        await shown.until_answered()
        assert (shown.answer.content, shown.answer.state) == ("", STOPPED)


async def test_an_answer_grows_on_the_screen_and_its_figures_freeze() -> None:
    async with answering("alpha beta gamma delta epsilon zeta eta", 3) as (shown, hold):
        await shown.until(lambda: "alpha beta" in shown.text)
        await shown.until(lambda: "● " in shown.text, "live figures")
        await shown.until_answered(hold)
        await shown.until(lambda: "zeta eta" in shown.text)
        assert "● " not in shown.text
        assert "7 tokens" in shown.text


CHANNEL = "<|channel|>analysis<|message|>{}<|end|><|start|>assistant<|channel|>final<|message|>"


@pytest.mark.parametrize(
    ("said", "thinks"),
    [
        ("<think>\nHm **a**.\n</think>\n\nA **fox**.", None),
        ("Hm **a**.\n</think>\n\nA **fox**.", True),
        (CHANNEL.format("Hm **a**.") + "A **fox**.", None),
    ],
)
async def test_reasoning_is_shown_apart_and_not_copied(said: str, thinks: bool | None) -> None:
    script = Script(said)
    script.thinks = thinks
    async with chat(script) as shown:
        await shown.send("Well?")
        assert "Hm **a**." in shown.text
        assert "A fox." in shown.text
        assert "<" not in shown.text
        await shown.command("/copy")
        assert shown.copied == ["A **fox**."]
        await shown.send("And then?")
        assert script.asked[-1].messages[1]["content"].endswith(said)


async def at_conversation(shown: Chat) -> None:
    shown.app.transcript.focus()
    await shown.settle()


async def test_regenerate_makes_a_branch_and_the_one_shown_is_shown_next_time() -> None:
    async with chat(Script("One.", "Two.")) as shown:
        await shown.send("say a number")
        await shown.press_for("Two.", "ctrl+r")
        assert shown.texts == ["say a number", "Two."]
        assert "‹ 2/2 ›" in shown.text
        assert [m["content"] for m in shown.script.asked[1].messages] == ["say a number"]
        await at_conversation(shown)
        await shown.press("left")
        await shown.until(lambda: shown.has("One."))
        assert "‹ 1/2 ›" in shown.text
        assert "Two." not in shown.text
        shown.app.prompt.focus()
        await shown.command("/branch previous")
        assert shown.errors() == ["This is the first branch."]
        await at_conversation(shown)
        await shown.press("right")
        await shown.until(lambda: shown.has("Two."))
        shown.app.prompt.focus()
        await shown.command("/branch next", "/branch 5")
        assert shown.errors()[1:] == ["This is the last branch."] * 2
        await shown.command("/branch 1")
        await shown.until(lambda: shown.has("One."))
    async with chat(size=(140, 40)) as shown:
        await shown.press("ctrl+f", "enter", "enter")
        await shown.until(lambda: shown.texts)
        assert shown.texts == ["say a number", "One."]


async def test_an_earlier_answer_again_leaves_what_followed_on_its_branch() -> None:
    async with chat(Script("One.", "More.", "Another.")) as shown:
        await shown.send("first", "second")
        await at_conversation(shown)
        await shown.press("up", "up", "up")
        assert shown.selected == "One."
        await shown.press_for("Another.", "r")
        await shown.press("escape")
        assert shown.texts == ["first", "Another."]
        await shown.command("/branch previous")
        await shown.until(lambda: shown.has("More."))
        assert shown.texts == ["first", "One.", "second", "More."]


async def test_edit_and_resend_as_a_branch() -> None:
    async with chat(Script("Rome.", "Paris.")) as shown:
        await shown.send("capital of Italy")
        await shown.command("/edit")
        assert shown.app.prompt.text == "capital of Italy"
        assert "editing: Enter sends it as a branch" in shown.text
        await shown.press("x", "escape", "up")
        assert shown.app.prompt.text == "capital of Italyx"
        await shown.press("ctrl+c")
        await shown.command("/edit")
        await shown.press(*["backspace"] * 5)
        await shown.type("France")
        await shown.press_for("Paris.", "enter")
        assert shown.texts == ["capital of France", "Paris."]
        assert [m["content"] for m in shown.script.asked[1].messages] == ["capital of France"]
        assert "editing" not in shown.text
        await shown.command("/branch previous")
        await shown.until(lambda: shown.has("Rome."))
        assert shown.texts == ["capital of Italy", "Rome."]
        await shown.command("/branch 2")
        await shown.until(lambda: shown.has("Paris."))
        for typed, said in (("// main.c", "// main.c"), ("//help me", "/help me")):
            shown.app.prompt.set_text(typed)
            await shown.press_for(said, "enter")
            await shown.command("/edit")
            assert shown.app.prompt.text == typed
