"""Who proposed which token: colours, shapes, what was rejected, the legend; and why in words."""

from __future__ import annotations

import pytest
from rich.style import Style
from textual.widgets import Markdown, Static

from localspec.tui.screens.reading_screen import ReadingScreen
from localspec.tui.widgets.figures_panel import FiguresPanel
from tests.tui.pilots import Chat, chat
from tests.tui.scripted import NEVER, Hold, Pass, Says, Scripted

pytestmark = pytest.mark.nightly

TEXT = "alpha bravo charlie delta echo foxtrot golf hotel india juliet kilo lima mike november"
"""alpha comes with the prompt; then 3 of the n-gram + 1, 2 of the draft model + 1, 1 plain, …"""


def styles(shown: Chat) -> dict[str, Style]:
    """Of each word on the screen that begins like one of TEXT."""
    found: dict[str, Style] = {}
    for strip in shown.app.screen._compositor.render_strips():
        for segment in strip:
            for word in segment.text.split():
                if word in TEXT or word == "(wrong)":
                    found.setdefault(word, segment.style or Style())
    return found


def legend(shown: Chat) -> str:
    """The line that tells the marks apart, empty where it is not shown."""
    line = shown.app.line("#legend")
    return str(line.content) if line.display else ""


async def test_ctrl_t_goes_through_markdown_tokens_and_rejected() -> None:
    async with chat(Scripted(TEXT)) as shown:
        await shown.send("letters")
        assert legend(shown) == ""
        await shown.press("ctrl+t")
        assert "n-gram underlined" in legend(shown)
        assert "draft model bold" in legend(shown)
        assert "rejected" not in legend(shown)
        assert "(wrong)" not in shown.text
        await shown.press("ctrl+t")
        assert "rejected struck through" in legend(shown)
        assert "(wrong)" in shown.text
        await shown.press("ctrl+t")
        assert legend(shown) == ""
        assert "(wrong)" not in shown.text


async def test_tokens_are_coloured_and_shaped_by_their_source() -> None:
    async with chat(Scripted(TEXT)) as shown:
        await shown.send("letters")
        await shown.command("/tokens rejected")
        await shown.until(lambda: "(wrong)" in shown.text)
        found = styles(shown)
        for word in ("bravo", "charlie", "delta"):
            assert found[word].underline, word
        for word in ("foxtrot", "golf"):
            assert found[word].bold, word
            assert not found[word].underline
        for word in ("alpha", "echo", "hotel", "india"):
            assert not found[word].underline, word
            assert not found[word].bold, word
        colours = {str(found[word].color) for word in ("alpha", "bravo", "foxtrot")}
        assert len(colours) == 3
        assert found["(wrong)"].strike


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
async def test_the_legend_names_each_mark_once(size: tuple[int, int]) -> None:
    async with chat(Scripted(f"{TEXT} {TEXT} {TEXT}", TEXT), size=size) as shown:
        await shown.send("letters")
        await shown.send("letters again")
        await shown.command("/tokens rejected")
        await shown.until(lambda: legend(shown))
        for name in ("the model itself", "n-gram", "draft model", "cascade", "rejected"):
            assert legend(shown).count(name) == 1, name
            assert sum(row.count(name) for row in shown.text.splitlines() if "cascade" in row) == 1
        assert ("struck through" in legend(shown)) is (size == (200, 60))


async def test_without_colours_the_shapes_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with chat(Scripted(TEXT)) as shown:
        assert shown.app.no_color
        await shown.send("letters")
        await shown.command("/tokens on")
        await shown.until(lambda: legend(shown))
        found = styles(shown)
        assert found["bravo"].underline
        assert found["foxtrot"].bold
        svg = shown.app.export_screenshot()
        assert "n-gram" in svg


async def test_an_answer_is_coloured_while_it_comes_and_when_it_is_found_again() -> None:
    hold = Hold()
    async with chat(Scripted(Says(TEXT, {2: hold})), size=(140, 40)) as shown:
        await shown.command("/tokens on")
        await shown.send("letters", answered=False)
        await shown.until(lambda: "bravo" in styles(shown) and styles(shown)["bravo"].underline)
        assert shown.app.conversing.running is not None
        hold.release()
        await shown.answered()
        await shown.until(lambda: styles(shown)["foxtrot"].bold)
    async with chat(size=(140, 40)) as shown:
        await shown.press("ctrl+b", "ctrl+f", "enter", "enter")
        await shown.until(lambda: shown.says(TEXT))
        await shown.until(lambda: styles(shown)["bravo"].underline)


async def test_a_source_nobody_knows_has_a_mark_too() -> None:
    async with chat(Scripted(Says(TEXT, passes=[Pass("oracle", right=2)]))) as shown:
        await shown.send("letters")
        await shown.command("/tokens on")
        await shown.until(lambda: "oracle" in legend(shown))
        assert styles(shown)["bravo"] != styles(shown)["alpha"]


async def test_the_figures_tell_what_drafting_did() -> None:
    async with chat(Scripted(TEXT)) as shown:
        await shown.send("letters")
        for expected in (
            "tok/s",
            "× plain llama.cpp",
            "Accepted drafts",
            "n-gram",
            "draft model",
            "position 1",
            "verify",
            "overhead",
            "of 512",
        ):
            assert expected in shown.text, expected
        assert "14 tokens" in shown.text


async def test_where_drafting_is_off_a_sentence_says_why() -> None:
    async with chat(Scripted(Says(TEXT, passes=[Pass()]))) as shown:
        await shown.send("letters")
        panel = str(shown.app.part(FiguresPanel).query_one("#drafts", Static).content)
        assert f"Drafting is off: {NEVER}." in panel
        assert "Drafting is off: " in shown.text
        assert "not drafted" in shown.text


async def test_why_explains_the_last_answer() -> None:
    async with chat(Scripted(TEXT)) as shown:
        await shown.command("/why")
        assert shown.errors() == ["There is no answer to explain yet."]
        await shown.send("letters")
        for open_it in ("/why", "f2"):
            if open_it == "f2":
                await shown.press("f2")
            else:
                await shown.command(open_it)
            await shown.until(lambda: isinstance(shown.app.screen, ReadingScreen))
            source = shown.app.screen.query_one(Markdown).source
            assert "**tale** wrote 14 tokens at" in source
            assert NEVER in source
            await shown.until(lambda: "wrote 14 tokens" in shown.text)
            await shown.press("escape")
            assert not isinstance(shown.app.screen, ReadingScreen)


async def test_why_of_a_message_that_is_selected() -> None:
    async with chat(Scripted(TEXT, "short")) as shown:
        await shown.send("letters")
        await shown.send("once more")
        shown.app.transcript.focus()
        await shown.press("up", "up", "up", "w")
        await shown.until(lambda: "wrote 14 tokens" in shown.text)
        await shown.press("w")
        await shown.press("up", "w")
        await shown.hears("Only answers have figures.")
