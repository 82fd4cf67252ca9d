"""The main story again, with the embedded pair in place of the scripted engine."""

from __future__ import annotations

import pytest
from textual.widgets import OptionList

from localspec import Drafting, ModelOptions
from localspec.chat.conversation import COMPLETE
from localspec.tui.app import ChatApp
from tests.tui.pilots import Chat, chat

pytestmark = pytest.mark.nightly

WIDE = (140, 40)


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine two wait for each other."""
    monkeypatch.setenv("LOCALSPEC_THREADS", "1")


def the_app(max_tokens: int | None = None) -> ChatApp:
    """The embedded pair, greedy, always drafting: the same on every machine."""
    return ChatApp(
        options=ModelOptions(context=1024),
        drafting=Drafting(depth=4),
        sampling={"temperature": 0.0},
        max_tokens=max_tokens,
    )


async def open_first(shown: Chat) -> None:
    await shown.until(lambda: "No conversations" not in shown.listed()[0])
    shown.app.sidebar.query_one(OptionList).focus()
    await shown.press("home", "enter")
    await shown.until(lambda: shown.said, "the conversation")


async def test_send_regenerate_and_find_it_again_after_a_restart() -> None:
    async with chat(app=the_app(max_tokens=40), size=WIDE) as shown:
        opened = shown.app.conversing.opened
        assert opened is not None
        assert opened.draft is not None
        await shown.send("Tell me a story about a fox.")
        first = shown.answer.content
        assert len(first.split()) > 10
        assert shown.answer.finish_reason == "length"
        stats = shown.answer.stats
        assert stats is not None
        assert stats["tokens"] == 40
        assert stats["drafted"] > 0
        assert shown.answer.spans is not None
        assert sum(length for length, _ in shown.answer.spans) == len(first)
        assert "tok/s" in shown.text
        assert " ".join(first.split()[:4]) in shown.text
        await shown.press("ctrl+r")
        await shown.until(lambda: len(shown.app.conversing.conversation.messages) == 3)
        await shown.answered()
        assert "‹ 2/2 ›" in shown.text
        assert len(shown.answer.content.split()) > 10
        await shown.send("And then?")
        assert len(shown.path) == 4
        expected = shown.said
        assert not shown.errors()
    async with chat(app=the_app(max_tokens=40), size=WIDE) as shown:
        await open_first(shown)
        assert shown.said == expected
        assert [m.state for m in shown.path] == [COMPLETE] * 4
        assert "‹ 2/2 ›" in shown.text
        await shown.send("The end?")
        assert len(shown.path) == 6
