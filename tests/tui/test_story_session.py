"""`localspec chat --session FILE`: the conversation is there again, and need not be decoded."""

from __future__ import annotations

from pathlib import Path

import pytest

from localspec import Drafting, ModelOptions
from localspec.chat.conversation import ASSISTANT, USER
from localspec.cli.main import main
from localspec.history.history import History
from localspec.tui.app import ChatApp
from localspec.tui.session.session_conversation import read
from tests.sessions.test_session_file import files_of_at_most
from tests.tui.pilots import chat

pytestmark = pytest.mark.nightly

LONG = "Tell me a story about a fox, a bear and a bird. " * 12


def the_app(path: Path) -> ChatApp:
    return ChatApp(
        options=ModelOptions(context=1024, threads=1),
        drafting=Drafting(drafter="none"),
        sampling={"temperature": 0.0},
        max_tokens=12,
        session=read(path),
    )


async def test_leave_and_come_back(tmp_path: Path) -> None:
    path = tmp_path / "fox.session"
    async with chat(app=the_app(path)) as shown:
        await shown.send(LONG)
        said = shown.said
        id = shown.app.conversing.conversation.id
    assert shown.app.trouble is None
    async with chat(app=the_app(path)) as shown:
        assert shown.said == said
        await shown.send("And then?")
        stats = shown.answer.stats
        assert stats is not None
        assert stats["cached_tokens"] > 150
        assert len(shown.said) == 4
    history = History()
    conversation = history.load(id)
    assert [m.role for m in conversation.path()] == [USER, ASSISTANT] * 2
    assert history.count() == 1, "it is the same one, not a copy"
    history.close()


async def test_one_that_run_made_is_taken_into_the_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", None)
    path = tmp_path / "fox.session"
    arguments = ["-q", "-n", "4", "--drafter", "none", "--session", str(path)]
    assert main(["run", *arguments, "Who is there?"]) == 0
    async with chat(app=the_app(path)) as shown:
        assert shown.said[0] == "Who is there?"
        await shown.until(lambda: len(shown.listed()) == 1)
        await shown.until(lambda: "Who is there" in shown.listed()[0])
        assert len(shown.app.store.history.load(shown.app.conversing.conversation.id).messages) == 2
    assert main(["run", *arguments, "And now?"]) == 0
    conversation = read(path).conversation
    assert conversation is not None
    assert [m.role for m in conversation.path()] == [USER, ASSISTANT] * 2


async def test_a_full_disk_is_told_at_the_end(tmp_path: Path) -> None:
    async with chat(app=the_app(tmp_path / "fox.session")) as shown:
        await shown.send(LONG)
        with files_of_at_most(20_000):
            trouble = shown.app.engine.close(5.0)
    assert trouble is not None
    assert trouble.startswith("The session cannot be kept in")
