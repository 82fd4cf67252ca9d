"""Panels, small terminals, the mouse, and the preferences that store panels."""

import pytest
from textual import events

from tests.tui.pilots import Chat, answering, chat
from tests.tui.scripted import Script

pytestmark = pytest.mark.nightly

LONG = "\n\n".join(f"Paragraph {number} of the answer." for number in range(60))


def panels(shown: Chat) -> tuple[bool, bool]:
    return shown.app.sidebar.display, shown.app.figures_panel.display


def above(shown: Chat) -> list[str]:
    """The conversation's first rows, without the scrollbar."""
    return [row[:70].rstrip() for row in shown.text.splitlines()[1:6]]


@pytest.mark.parametrize(
    ("size", "expected"),
    [((80, 24), (False, False)), ((100, 30), (False, True)), ((140, 40), (True, True))],
)
async def test_panels_go_by_the_width(size: tuple[int, int], expected: tuple[bool, bool]) -> None:
    async with chat(size=size) as shown:
        assert panels(shown) == expected
        await shown.send("hello")
        assert "Answer 1." in shown.text
        rows = shown.text.splitlines()
        assert len(rows) == size[1]
        assert all(len(row) <= size[0] for row in rows)


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
        await shown.command("/figures", "/sidebar")
        assert panels(shown) == before
        assert shown.app.transcript.size.width == width


async def test_on_a_narrow_terminal_a_panel_lies_over_the_conversation_for_a_moment() -> None:
    async with chat(size=(80, 24)) as shown:
        await shown.send("hello")
        width = shown.app.transcript.size.width
        for key, panel in (("ctrl+g", shown.app.figures_panel), ("ctrl+b", shown.app.sidebar)):
            await shown.press(key)
            assert panel.display
            assert panel.size.width > 20
            assert shown.app.transcript.size.width == width
            await shown.press("escape")
            await shown.until(lambda panel=panel: not panel.display, key)  # type: ignore[misc]
        await shown.press("ctrl+g")
        assert "per pass" in shown.text
        assert "position 1" in shown.text or "no drafts yet" in shown.text


@pytest.mark.parametrize("size", [(20, 5), (1, 1)])
async def test_small_terminals_answer_and_grow_again(size: tuple[int, int]) -> None:
    async with answering(LONG, 3) as (shown, hold):
        await shown.resize(*size)
        assert len(shown.text.splitlines()) <= size[1]
        await shown.press("ctrl+g", "ctrl+g", "ctrl+b", "ctrl+b", "f1", "escape", "ctrl+t")
        await shown.until_answered(hold)
        await shown.type("hello")
        await shown.resize(120, 40)
        await shown.until(lambda: "Paragraph 59" in shown.text)
        assert "hello" in shown.text
        assert "per pass    –" not in shown.text  # hidden until now


async def test_a_click_selects_a_message_and_keys_act_on_it() -> None:
    async with chat(Script("One.", "Two.")) as shown:
        await shown.send("first", "second")
        row = next(n for n, row in enumerate(shown.text.splitlines()) if "One." in row)
        await shown.pilot.click(offset=(6, row))
        await shown.until(lambda: shown.selected == "One.")
        assert "▌ One." in shown.text or "▌One." in shown.text.replace(" ", "")
        await shown.press("c")
        assert shown.copied == ["One."]
        await shown.type("y on")  # a key of the conversation no more
        shown.app.transcript.focus()
        shown.app.post_message(events.Paste("ce"))
        await shown.until(lambda: shown.app.prompt.text == "y once")
        await shown.pilot.mouse_down(offset=(4, row))
        await shown.pilot.mouse_up(offset=(7, row))
        assert shown.app.screen.get_selected_text()
        assert shown.app.prompt.has_focus


async def test_the_wheel_scrolls_and_the_end_is_followed_again() -> None:
    async with answering(LONG, 40, size=(80, 24)) as (shown, hold):
        transcript = shown.app.transcript
        await shown.until(lambda: transcript.max_scroll_y > 24)
        assert transcript.following
        await shown.pilot._post_mouse_events([events.MouseScrollUp], transcript, button=0)
        await shown.until(lambda: not transcript.following, "scrolled up")
        top = above(shown)
        await shown.until_answered(hold)
        await shown.settle()
        assert above(shown) == top  # nothing moved
        transcript.focus()
        await shown.press("end")
        await shown.until(lambda: "Paragraph 59" in shown.text)
        assert transcript.following
        await shown.press("home")
        await shown.until(lambda: "You" in shown.text)
        shown.app.prompt.focus()
        await shown.press("pagedown")
        assert "Paragraph 8 " in above(shown)[0]


async def test_what_is_read_stays_in_view_when_the_width_changes() -> None:
    words = " ".join(f"word{number}" for number in range(1000))
    async with chat(Script(words), size=(80, 24)) as shown:
        await shown.send("count")
        await shown.press("pageup", "pageup", "pageup")
        first = above(shown)[0].split()[0]
        for width in (50, 80):
            await shown.resize(width, 24)
            assert f" {first} " in " ".join(above(shown)[:2])


async def test_selected_text_is_copied_with_ctrl_c() -> None:
    async with chat(Script("The quick brown fox.")) as shown:
        await shown.send("who")
        rows = shown.text.splitlines()
        row = next(n for n, row in enumerate(rows) if "quick" in row)
        column = rows[row].index("quick")
        await shown.pilot.mouse_down(offset=(column, row))
        await shown.pilot.hover(offset=(column + 9, row))
        await shown.pilot.mouse_up(offset=(column + 9, row))
        await shown.until(lambda: shown.app.screen.get_selected_text())
        await shown.press("ctrl+c")
        assert shown.copied in (["quick brow"], ["quick bro"])
        assert shown.app.is_running
