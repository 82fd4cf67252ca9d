"""Panels that fold, small terminals, the mouse, and what is remembered of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from textual import events
from textual.widgets import OptionList

from localspec.tui.widgets.figures_panel import FiguresPanel
from localspec.tui.widgets.sidebar import Sidebar
from tests.tui.pilots import Chat, chat
from tests.tui.scripted import Hold, Says, Scripted

pytestmark = pytest.mark.nightly

LONG = "\n\n".join(f"Paragraph {number} of the answer." for number in range(60))


def panels(shown: Chat) -> tuple[bool, bool]:
    return shown.app.sidebar.display, shown.app.part(FiguresPanel).display


def above(shown: Chat) -> list[str]:
    """The conversation's first rows, without the scrollbar."""
    return [row[:70].rstrip() for row in shown.text.splitlines()[1:6]]


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((80, 24), (False, False)),
        ((100, 30), (False, True)),
        ((120, 40), (False, True)),
        ((140, 40), (True, True)),
        ((200, 60), (True, True)),
    ],
)
async def test_panels_go_by_the_width(size: tuple[int, int], expected: tuple[bool, bool]) -> None:
    async with chat(size=size) as shown:
        assert panels(shown) == expected
        await shown.send("hello")
        assert "Answer 1." in shown.text
        rows = shown.text.splitlines()
        assert len(rows) == size[1]
        assert all(len(row) <= size[0] for row in rows)


async def test_figures_tell_what_drafts_saved_and_may_lose() -> None:
    async with chat(size=(120, 40)) as shown:
        assert "No answers yet." in shown.text
        await shown.send("hello")
        panel = " ".join(line[90:].strip() for line in shown.text.splitlines())
        assert "in this conversation; loss limit 0.3 s." in panel
        assert panel.count("Drafting") == 1  # one sentence, nothing that contradicts it


@pytest.mark.parametrize("size", [(120, 40), (200, 60)])
async def test_panels_fold_and_unfold_beside_the_conversation(size: tuple[int, int]) -> None:
    async with chat(size=size) as shown:
        before = panels(shown)
        width = shown.app.transcript.size.width
        await shown.press("ctrl+g")
        assert panels(shown) == (before[0], not before[1])
        assert shown.app.transcript.size.width > width
        await shown.press("ctrl+b")
        assert panels(shown) == (not before[0], not before[1])
        shown.app.prompt.focus()
        await shown.command("/figures")
        await shown.command("/sidebar")
        assert panels(shown) == before
        assert shown.app.transcript.size.width == width


async def test_on_a_narrow_terminal_a_panel_lies_over_the_conversation_for_a_moment() -> None:
    async with chat(size=(80, 24)) as shown:
        await shown.send("hello")
        width = shown.app.transcript.size.width
        for key, kind in (("ctrl+g", FiguresPanel), ("ctrl+b", Sidebar)):
            await shown.press(key)
            panel = shown.app.part(kind)
            assert panel.display
            assert panel.size.width > 20
            assert shown.app.transcript.size.width == width
            await shown.press("escape")
            await shown.until(lambda panel=panel: not panel.display, key)  # type: ignore[misc]
        await shown.press("ctrl+g")
        assert "per pass" in shown.text
        assert "position 1" in shown.text or "no drafts yet" in shown.text


@pytest.mark.parametrize("key", ["ctrl+g", "ctrl+b"])
async def test_what_lies_over_the_conversation_leaves_the_input_in_view(key: str) -> None:
    async with chat(size=(80, 24)) as shown:
        await shown.type("a message that is being written")
        await shown.press(key)
        assert "a message that is being written" in shown.text
        shown.app.prompt.focus()
        await shown.press("ctrl+j", "ctrl+j", "ctrl+j")
        await shown.until(lambda: "a message that is being written" in shown.text)


async def test_notices_leave_the_input_in_view() -> None:
    async with chat(size=(80, 24), toasts=True) as shown:
        await shown.command("/title")
        await shown.hears("There is nothing to name yet.")
        await shown.type("still seen")
        await shown.until(lambda: "nothing to name" in shown.text)
        assert "still seen" in shown.text


async def test_a_conversation_chosen_on_a_narrow_terminal_is_seen_at_once() -> None:
    async with chat(size=(80, 24)) as shown:
        await shown.send("hello")
        await shown.press("ctrl+n", "ctrl+f")
        assert shown.app.sidebar.display
        await shown.press("enter", "enter")
        await shown.until(lambda: shown.said == ["hello", "Answer 1."])
        await shown.until(lambda: not shown.app.sidebar.display)
        assert shown.app.prompt.has_focus


async def test_a_panel_that_was_folded_stays_folded_next_time(home: Path) -> None:
    async with chat(size=(140, 40)) as shown:
        await shown.press("ctrl+g", "ctrl+t")
        await shown.command("/theme dracula")
        assert shown.app.theme == "dracula"
    kept = json.loads((home / "data" / "chat.json").read_text(encoding="utf-8"))
    assert kept["figures"] is False
    assert kept["theme"] == "dracula"
    async with chat(size=(140, 40)) as shown:
        assert panels(shown) == (True, False)
        assert shown.app.theme == "dracula"
        assert shown.app.transcript.tokens


async def test_what_lies_over_a_narrow_terminal_is_not_remembered() -> None:
    async with chat(size=(80, 24)) as shown:
        await shown.press("ctrl+g")
    async with chat(size=(80, 24)) as shown:
        assert panels(shown) == (False, False)


async def test_a_light_terminal_begins_with_a_light_theme(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLORFGBG", "0;15")
    async with chat() as shown:
        assert not shown.app.current_theme.dark


async def test_an_unknown_theme_is_refused_with_those_that_there_are() -> None:
    async with chat() as shown:
        await shown.command("/theme mud")
        await shown.hears("There is no theme 'mud'. Choose from ")


@pytest.mark.parametrize("size", [(20, 5), (10, 3), (1, 1), (30, 10)])
async def test_small_terminals_answer_and_grow_again(size: tuple[int, int]) -> None:
    hold = Hold()
    async with chat(Scripted(Says(LONG, {3: hold})), size=(120, 40)) as shown:
        await shown.send("much", answered=False)
        await shown.until(lambda: hold.reached)
        await shown.resize(*size)
        assert len(shown.text.splitlines()) <= size[1]
        await shown.press("ctrl+g", "ctrl+g", "ctrl+b", "ctrl+b", "f1", "escape", "ctrl+t")
        hold.release()
        await shown.answered()
        await shown.type("hello")
        await shown.resize(120, 40)
        await shown.until(lambda: "Paragraph 59" in shown.text)
        assert "hello" in shown.text


@pytest.mark.parametrize("size", [(20, 5), (10, 3)])
async def test_small_terminals_from_the_start(size: tuple[int, int]) -> None:
    async with chat(Scripted("Yes."), size=size) as shown:
        await shown.type("hi")
        assert "hi" in shown.text
        await shown.press("enter")
        await shown.until(lambda: shown.says("Yes."))
        await shown.answered()
        if size == (20, 5):
            assert "Yes." in shown.text


async def test_a_click_selects_a_message_and_keys_act_on_it() -> None:
    async with chat(Scripted("One.", "Two.")) as shown:
        await shown.send("first")
        await shown.send("second")
        row = next(n for n, row in enumerate(shown.text.splitlines()) if "One." in row)
        await shown.click(offset=(6, row))
        selected = shown.app.transcript.selected
        assert selected is not None
        assert selected.content == "One."
        assert "▌ One." in shown.text or "▌One." in shown.text.replace(" ", "")
        await shown.press("c")
        assert shown.copied == ["One."]


async def test_a_click_in_the_list_opens_a_conversation() -> None:
    async with chat(size=(140, 40)) as shown:
        await shown.send("hello")
        await shown.press("ctrl+n")
        await shown.click(OptionList, offset=(10, 0))
        await shown.until(lambda: shown.said == ["hello", "Answer 1."])


async def test_the_wheel_scrolls_and_the_end_is_followed_again() -> None:
    hold = Hold()
    script = Scripted(Says(LONG, {40: hold}))
    async with chat(script, size=(80, 24)) as shown:
        await shown.send("much", answered=False)
        await shown.until(lambda: hold.reached)
        transcript = shown.app.transcript
        await shown.until(lambda: transcript.max_scroll_y > 24)
        assert transcript.following
        for _ in range(4):
            await shown.pilot._post_mouse_events([events.MouseScrollUp], transcript, button=0)
        await shown.until(lambda: not transcript.following, "scrolled up")
        top = above(shown)
        hold.release()
        await shown.answered()
        await shown.settle()
        assert above(shown) == top  # nothing moved
        transcript.focus()
        await shown.press("end")
        await shown.until(lambda: "Paragraph 59" in shown.text)
        assert transcript.following
        await shown.press("home")
        await shown.until(lambda: "You" in shown.text)


async def test_selected_text_is_copied_with_ctrl_c() -> None:
    async with chat(Scripted("The quick brown fox.")) as shown:
        await shown.send("who")
        rows = shown.text.splitlines()
        row = next(n for n, row in enumerate(rows) if "quick" in row)
        column = rows[row].index("quick")
        await shown.pilot.mouse_down(offset=(column, row))
        await shown.pilot.hover(offset=(column + 9, row))
        await shown.pilot.mouse_up(offset=(column + 9, row))
        await shown.until(lambda: shown.app.screen.get_selected_text())
        await shown.press("ctrl+c")
        assert shown.copied == ["quick brow"] or shown.copied == ["quick bro"]
        assert shown.app.is_running
