"""Display of token sources: colours, shapes, rejected tokens, the legend; and /why."""

import pytest
from rich.style import Style
from textual.widgets import Markdown, OptionList

from localspec.tui.screens.dialogs import ReadingScreen
from tests.tui.pilots import Chat, chat
from tests.tui.scripted import NEVER, Hold, Reply, Script

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
    return str(shown.app.legend_line.content) if shown.app.legend_line.display else ""


async def test_ctrl_t_shows_tokens_and_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLORFGBG", "0;15")
    async with chat(Script(TEXT)) as shown:
        assert shown.app.preferences.theme is None  # the terminal's, which may change
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
        await shown.resize(60, 20)
        await shown.until(lambda: "draft model  rejected" in shown.text)
        options = shown.app.sidebar.query_one(OptionList)
        before = options.options[0].prompt
        await shown.command("/theme nord")
        await shown.until(lambda: options.options[0].prompt != before)
        await shown.press("ctrl+t")
        assert legend(shown) == ""
        assert "(wrong)" not in shown.text


async def test_an_answer_is_coloured_while_it_comes_and_when_it_is_found_again() -> None:
    hold = Hold()
    async with chat(Script(Reply(TEXT, {2: hold})), size=(140, 40)) as shown:
        await shown.command("/tokens on")
        await shown.send("letters", answered=False)
        await shown.until(lambda: "bravo" in styles(shown) and styles(shown)["bravo"].underline)
        assert shown.app.chat_session.running is not None
        await shown.until_answered(hold)
        await shown.until(lambda: styles(shown)["foxtrot"].bold)
    async with chat(size=(140, 40)) as shown:
        await shown.press("ctrl+b", "ctrl+f", "enter", "enter")
        await shown.until(lambda: shown.has(TEXT))
        await shown.until(lambda: styles(shown)["bravo"].underline)


async def why(shown: Chat) -> str:
    """What F2 tells of the last answer."""
    await shown.open(ReadingScreen, "f2")
    source = shown.app.screen.query_one(Markdown).source
    await shown.press("escape")
    return source


async def test_why_explains_the_last_answer_also_while_it_comes() -> None:
    reading, writing = Hold(), Hold()
    async with chat(Script("One.", Reply(TEXT, {0: reading, 2: writing}))) as shown:
        await shown.send("first")
        await shown.send("letters", answered=False)
        await shown.until(lambda: reading.reached)
        assert "There are no figures yet" in await why(shown)
        reading.release()
        await shown.until(lambda: writing.reached and "echo" in shown.answer.content)
        assert "**tale** wrote 5 tokens at" in await why(shown)
        await shown.until_answered(writing)
        assert "**tale** wrote 14 tokens at" in (told := await why(shown))
        assert NEVER in told
        await shown.command("/why")
        await shown.open(ReadingScreen)
        await shown.until(lambda: "wrote 14 tokens" in shown.text)
