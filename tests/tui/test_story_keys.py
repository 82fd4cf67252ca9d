"""Use by keyboard: completion, the palette, the keys screen, Ctrl+C, and redrawing."""

import pytest
from textual import events
from textual.command import CommandPalette
from textual.screen import ModalScreen
from textual.widgets import Footer, OptionList

from localspec.tui.screens.dialogs import QuestionScreen, ReadingScreen, SettingsScreen
from localspec.tui.widgets.composer import Completions
from tests.tui.pilots import Chat, answering, chat, option_texts
from tests.tui.scripted import Hold, Script

pytestmark = pytest.mark.nightly


def offered(shown: Chat) -> list[str]:
    completions = shown.app.query_one(Completions)
    return option_texts(completions) if completions.display else []


async def test_commands_complete_by_keyboard() -> None:
    async with chat() as shown:
        await shown.type("/")
        assert offered(shown)[0].startswith("/help")
        assert shown.app.query_one(Completions).size.height == 8
        await shown.type("s")
        names = ["/system", "/set", "/search", "/sidebar", "/stop"]
        assert [row.split()[0] for row in offered(shown)] == names
        await shown.press("down", "down", "up", "tab")
        assert shown.app.prompt.text == "/set "
        assert [row.split()[-1] for row in offered(shown)][:2] == ["temperature", "top_k"]
        await shown.type("min")
        await shown.press("enter")
        assert shown.app.prompt.text == "/set min_p"
        assert offered(shown) == []
        shown.app.prompt.clear()
        before = shown.app.sidebar.display
        await shown.type("/side")
        await shown.press("enter")  # which takes no argument, and runs
        await shown.until(lambda: shown.app.sidebar.display is not before)
        assert shown.app.prompt.text == ""


async def test_the_command_palette_has_the_commands() -> None:
    async def choose(name: str) -> None:
        await shown.open(CommandPalette, "ctrl+p")
        shown.burst(name)
        options = shown.app.screen.query_one(OptionList)
        await shown.until(lambda: f"/{name}" in "".join(option_texts(options)[:1]))
        await shown.press("enter")

    async with chat() as shown:
        await shown.send("hello")
        await choose("new")
        await shown.until(lambda: not shown.texts)
        await choose("attach")  # which needs a path
        await shown.until(lambda: shown.app.prompt.text == "/attach ")


async def test_the_keys_that_apply_where_the_focus_is() -> None:
    async with chat(size=(140, 60)) as shown:
        places = {
            "Input": (shown.app.prompt, "New line"),
            "Conversation": (shown.app.transcript, "Edit and resend"),
            "List of conversations": (shown.app.sidebar.query_one(OptionList), "Delete"),
        }
        for key, (place, (widget, about)) in zip(
            ("question_mark", "f1", "question_mark"), places.items(), strict=True
        ):
            widget.focus()
            await shown.open(ReadingScreen, key)
            assert about in shown.text, place
            assert "Everywhere" in shown.text
            assert "/regenerate" in shown.text
            others = {other for other in places if other != place}
            assert not any(f" {other} " in shown.text for other in others), place
            await shown.press("f1")
            await shown.until(lambda: not isinstance(shown.app.screen, ReadingScreen))


async def test_keys_before_a_dialog_is_drawn_and_after_it_is_closed() -> None:
    async def press_at_once(keys: str) -> None:
        for key in keys.split():
            shown.app.post_message(events.Key(key, None))
        await shown.settle()

    async with chat() as shown:
        await shown.send("hello")
        await shown.command("/delete")
        await shown.until(lambda: isinstance(shown.app.screen, QuestionScreen))
        for keys in ("enter enter", "f1 f1", "ctrl+p pagedown escape ctrl+p escape"):
            await press_at_once(keys)
        await shown.send("again")
        assert len(shown.texts) == 4
        await shown.press("ctrl+p", *"figures")
        await press_at_once("enter enter enter")
        await shown.command("/delete")
        await shown.pilot.resize_terminal(2, 3)


async def test_keys_of_the_chat_do_nothing_below_a_dialog() -> None:
    async with chat(size=(80, 24)) as shown:
        await shown.send("hello")
        for opening in ("f1", "f2", "ctrl+o", "ctrl+s"):
            await shown.open(ModalScreen, opening)
            dialog = shown.app.screen
            await shown.press("ctrl+b", "ctrl+g", "ctrl+t", "ctrl+n", "ctrl+o", "ctrl+f", "ctrl+r")
            assert shown.app.screen is dialog
            assert not any(panel.has_class("over") for panel in shown.app.panels)
            assert not shown.app.transcript.tokens
            assert shown.texts == ["hello", "Answer 1."]
            assert dialog.query(Footer)
            await shown.press("escape")
            assert not isinstance(shown.app.screen, ModalScreen)


async def test_ctrl_c_copies_closes_a_dialog_and_then_stops() -> None:
    async with answering("one two three", 1) as (shown, _):
        await shown.type("typed ahead")
        await shown.press(*["shift+left"] * 5, "ctrl+c")
        assert (shown.copied, shown.app.prompt.text) == (["ahead"], "typed ahead")
        await shown.open(ModalScreen, "ctrl+o")
        await shown.press(*"lynx", *["shift+left"] * 2, "ctrl+c", "end", "ctrl+c")
        assert shown.copied == ["ahead", "nx"]
        assert not isinstance(shown.app.screen, ModalScreen)
        assert shown.app.chat_session.running is not None
        shown.app.prompt.clear()
        await shown.press("ctrl+c")
        await shown.until_answered()
        assert (shown.answer.state, shown.app.is_running) == ("stopped", True)


async def test_ctrl_c_clears_what_up_brings_back_and_ctrl_d_leaves() -> None:
    async with chat() as shown:
        await shown.type("two words and")
        await shown.press("alt+b", "backspace", "ctrl+delete", "alt+b", "ctrl+d")
        assert shown.app.prompt.text == "two ords"
        await shown.press("ctrl+c")
        assert shown.app.prompt.text == ""
        await shown.until_notice("Up brings the text back.", error=False)
        await shown.press("up")
        assert shown.app.prompt.text == "two ords"
        await shown.press("ctrl+c", "ctrl+d")
        assert shown.app.return_code == 0


async def test_ctrl_q_leaves_in_the_middle_of_an_answer_and_keeps_it() -> None:
    async with answering("one two three", 1, size=(140, 40)) as (shown, _):
        await shown.press("ctrl+q")
        assert shown.app.return_code == 0
    async with chat(size=(140, 40)) as shown:
        await shown.press("ctrl+f", "enter", "enter")
        await shown.until(lambda: shown.texts)
        assert shown.texts == ["count", "one "]
        assert shown.answer.state in ("stopped", "interrupted")


async def test_ctrl_q_does_not_wait_for_a_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    hold, name = Hold(), "localspec.tui.session.background_engine.measure_baseline"
    monkeypatch.setattr(name, lambda *given: hold.wait(lambda: [p(1.0) for p in given[2:]]))
    async with chat() as shown:
        await shown.send("hello")
        await shown.until(lambda: hold.reached)
        await shown.press("ctrl+q")
    assert shown.script.closed == 1


@pytest.mark.parametrize(
    ("size", "no_color"), [((120, 40), False), ((80, 9), True), ((20, 5), False)]
)
async def test_every_screen_draws(
    size: tuple[int, int], no_color: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if no_color:
        monkeypatch.setenv("NO_COLOR", "1")
    text = "# Title\n\n- a list\n\n> quoted\n\n| a |\n|---|\n| 1 |\n\n```py\nx = 1\n```\n"
    async with chat(Script(text, text), size=size) as shown:
        await shown.send("hello")
        for line in ("/why", "/help", "/set", "/delete", "/theme"):
            await shown.command(line)
            await shown.until(lambda: len(shown.app.screen_stack) == 2, line)
            await shown.settle()
            assert shown.text.strip(), line
            await shown.press("escape")
            await shown.until(lambda: len(shown.app.screen_stack) == 1, line)
        await shown.command("/tokens rejected")
        await shown.type("/")
        assert shown.app.screen.region.contains_region(shown.app.prompt.region)
        await shown.press("escape")
        shown.app.prompt.set_text("")
        await shown.send("again")
        await shown.open(SettingsScreen, "ctrl+s")
        await shown.press("tab", "tab", "tab", "escape")
        await shown.press("ctrl+b", "ctrl+g", "escape")
        assert not shown.errors()
