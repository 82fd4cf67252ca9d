"""Errors show a sentence on the screen, and the chat continues."""

from contextlib import ExitStack
from functools import partial

import pytest
from textual import events
from textual.widgets import Input

from localspec.chat.conversation import FAILED, USER, Conversation
from localspec.errors import ContextOverflow, ModelNotFound, NativeError
from localspec.history.history import History
from localspec.paths import history_file
from localspec.tui.screens.dialogs import SettingsScreen
from localspec.tui.session.background_engine import PairReference
from tests.history.histories import PATIENCE, locked, store
from tests.tui.pilots import Chat, chat
from tests.tui.scripted import Reply, Script

pytestmark = pytest.mark.nightly

FULL = ContextOverflow(
    "The prompt has 600 tokens, the context 512. Shorten it.", needed=600, available=512
)


async def test_an_error_keeps_the_answer_so_far_and_is_told_at_its_message() -> None:
    error = NativeError("No room for the batch. Use -c.")
    early = NativeError("The template is broken.")
    script = Script(Reply("one two three", error=error), Reply("", error=early, at_once=True))
    async with chat(script) as shown:
        await shown.send("count")
        assert (shown.answer.state, shown.answer.content) == (FAILED, "one two three")
        assert shown.errors() == [str(error)]
        assert f"✗ {error}" in shown.text
        await shown.press("ctrl+r")
        await shown.until(lambda: f"✗ {early}" in shown.text)
        assert shown.texts == ["count"]
        await shown.press_for("Answer 3.", "ctrl+r")
        assert [m["content"] for m in script.asked[2].messages] == ["count"]


@pytest.mark.parametrize("error", [RuntimeError("odd"), KeyboardInterrupt(), SystemExit(3)])
async def test_whatever_is_raised_the_chat_goes_on(error: BaseException) -> None:
    script = Script(Reply("one two", error=error), Reply("", error=error, at_once=True), "Fine.")
    script.troubles["bad.gguf"] = error
    async with chat(script) as shown:
        await shown.command("/model bad.gguf", says="Internal error, ")
        await shown.send("count")
        assert (shown.answer.state, shown.answer.content) == (FAILED, "one two")
        await shown.send("again", "and now")
        assert shown.texts[-1] == "Fine."


async def test_notices_never_cover_the_input() -> None:
    async with chat(size=(80, 24), toasts=True) as shown:
        await shown.command("/record on", says="From now on, answers", error=False)
        await shown.command("/learn on", says="From now on, each", error=False)
        await shown.command("/set temperature hot", says="temperature is 'hot'")
        await shown.settle()
        toasts = list(shown.app.screen.query("Toast"))
        assert len(toasts) == 2, "the oldest made room"
        assert toasts[-1].region.bottom <= shown.app.prompt.region.y


async def test_a_model_that_does_not_open_keeps_its_next_step_on_the_screen() -> None:
    script, step = Script(), "Get it with 'localspec pull owl'."
    script.troubles["owl"] = ModelNotFound(f"owl is not here. {step}")
    async with chat(script, pair=PairReference("owl"), ready=False, size=(60, 24)) as shown:
        await shown.until(lambda: step in shown.text)
        await shown.resize(30, 30)
        assert "no model is open (Ctrl+O)" in shown.text
        assert step in " ".join(shown.text.split())
        await shown.resize(60, 24)
        await shown.send("hello")
        assert "✗ No model is open." in shown.text
        assert step in " ".join(shown.text.split())
        assert not shown.errors()
        await shown.command("/title", says="No model is open.")
        await shown.command("/model demo")
        await shown.until(lambda: "demo, no draft model" in shown.text or "demo + " in shown.text)
        await shown.command("/new")
        await shown.until(lambda: "owl" not in shown.text)


async def test_a_notice_is_shown_once_and_escape_puts_it_away() -> None:
    async with chat(toasts=True) as shown:
        await shown.command("/nonsense")
        await shown.press("enter")
        await shown.until(lambda: len(shown.errors()) == 2)
        await shown.settle()
        assert shown.text.count("There is no command") == 1
        await shown.press("escape")
        assert "There is no command" not in shown.text
        shown.app.show_notice("x" * 5000)
        assert shown.notices[-1].text == "x" * 600 + "…"


async def test_what_the_terminal_would_obey_is_made_harmless() -> None:
    script = Script("\x1b[2J\x07gone [bold]not markup[/bold] \x9b31m")
    script.notices = ("odd \x1b]0;title\x07 name [b]x[/b]",)
    async with chat(script, toasts=True) as shown:
        await shown.until(lambda: "[b]x[/b]" in shown.text)
        shown.app.post_message(events.Paste("clear \x1b[2J"))
        await shown.until(lambda: shown.app.prompt.text)
        await shown.press("enter")
        await shown.until(lambda: len(shown.texts) == 2)
        await shown.until_answered()
        assert not any(ord(c) < 32 and c != "\n" for c in shown.text)
        assert not any(0x7F <= ord(c) < 0xA0 for c in shown.text)
        assert "[bold]not markup[/bold]" in shown.text


async def overflow(shown: Chat, answer: str) -> None:
    await shown.until(lambda: "The conversation has outgrown the context." in shown.text)
    assert "Shorten it." in shown.text
    await shown.choose(answer)


@pytest.mark.parametrize(
    ("way", "said", "mode"),
    [
        ("Continue without", ["first", "One.", "second"], "drop_oldest"),
        ("Begin a new", ["second"], "error"),
    ],
)
async def test_a_full_context_offers_a_way_on(way: str, said: list[str], mode: str) -> None:
    script = Script("One.", Reply("", error=FULL, at_once=True), "Two.", "Three.")
    async with chat(script) as shown:
        await shown.send("first", "second")
        await overflow(shown, way)
        await shown.press_for("Two.")
        assert shown.texts == [*said, "Two."]
        assert [m["content"] for m in script.asked[2].messages] == said
        await shown.send("third")
        assert [asked.overflow for asked in script.asked] == ["error", "error", mode, mode]


async def test_a_message_that_no_context_holds_is_told() -> None:
    full = Reply("", error=FULL, at_once=True)
    async with chat(Script(full, "One.", full, full)) as shown:
        await shown.send("endless")
        assert shown.errors() == [str(FULL)]
        await shown.send("short")
        assert shown.texts == ["endless", "short", "One."]
        await shown.send("endless again", answered=False)
        await overflow(shown, "Continue without")
        await shown.until(lambda: shown.errors() == [str(FULL)] * 2)
        await shown.until_answered()


async def test_messages_that_cannot_be_kept_are_told_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    impatient = partial(History, patience=PATIENCE)
    monkeypatch.setattr("localspec.history.history.History", impatient)
    with ExitStack() as stack:
        async with chat() as shown:
            await shown.send("first")
            stack.enter_context(locked(history_file()))
            await shown.send("second")
        told = str(shown.app.trouble)
        (rescued,) = history_file().parent.glob("*/first.md")
        assert f"Messages of this chat are in {rescued}: the history" in told
        assert "second" in rescued.read_text()


async def test_settings_that_no_engine_takes_are_told() -> None:
    conversation = Conversation(sampling={"temperature": -3, "warmth": 1})
    conversation.add(USER, "before")
    store([conversation])
    async with chat(size=(140, 40)) as shown:
        shown.app.open_conversation(conversation.id, None)
        await shown.until(lambda: shown.has("before"))
        await shown.send("hello")
        assert shown.texts == ["before", "hello"]
        assert "✗ " in shown.text
        assert len(shown.errors()) == 1
        await shown.press("ctrl+r")
        await shown.until(lambda: len(shown.errors()) == 2)
        assert shown.app.chat_session.running is None
        await shown.open(SettingsScreen, "ctrl+s")
        shown.app.screen.query_one("#temperature", Input).value = "0.5"
        await shown.press_for("Answer 1.", "enter", "ctrl+r")
