"""Failures of disk, model and terminal show a sentence, and the chat continues."""

import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from localspec.history.history import History
from tests.cli.process import patched
from tests.support.ggufs import aborting_llama
from tests.tui.terminals import chat, complete_chat

pytestmark = pytest.mark.nightly

EMBEDDED = "tale-13m-q8_0 + tale-3m-q8_0"
opened = partial(complete_chat, columns=90)  # without panels


def history(home: Path) -> Path:
    return home / "data" / "history.db"


def said(home: Path) -> list[str]:
    """The history, oldest first."""
    with closing(History(history(home), repair=False)) as kept:
        assert kept.trouble is None
        return list(kept.recent_prompts())


def test_a_model_that_makes_llama_cpp_abort(tmp_path: Path) -> None:
    path = aborting_llama(tmp_path / "bad.gguf")
    with opened(home=tmp_path) as terminal:
        terminal.until(EMBEDDED)
        terminal.type(f"/model {path}\r")
        terminal.until_notice("bad.gguf makes llama.cpp crash (SIGABRT)")
        terminal.until_notice("tale-13m-q8_0 stays open.")
        terminal.until(EMBEDDED)
        shown = terminal.text.count("tok/s")
        terminal.type("hello\r")
        terminal.until(lambda: "hello" in terminal.words)
        terminal.until(lambda: "●" not in terminal.text and terminal.text.count("tok/s") > shown)


def test_a_history_that_is_locked(tmp_path: Path) -> None:
    History(history(tmp_path)).close()
    with closing(sqlite3.connect(history(tmp_path), isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with opened(home=tmp_path) as terminal:
            terminal.until(EMBEDDED)
            terminal.type("hello\r")
            terminal.until_notice(
                "New messages are kept in memory only until that program releases it"
            )
            terminal.until("tok/s")
            other.execute("COMMIT")
            terminal.until_notice("The history is being saved again.")
    assert said(tmp_path) == ["hello"]


ABORTS = r"""
import os
from localspec import Stream
real = Stream.__next__

def after_a_while(stream):
    if len(stream.text) > 40:
        os.write(2, b"x.c:1: GGML_ASSERT(eps >= 0.0f) failed\n")
        os.abort()
    return real(stream)

Stream.__next__ = after_a_while
"""


def test_a_native_abort(tmp_path: Path) -> None:
    """Abort as llama.cpp does if one of its assertions fails."""
    with chat("chat", command=patched(ABORTS), home=tmp_path) as terminal:
        terminal.until(EMBEDDED)
        terminal.type("Tell me a story about a fox.\r")
        assert terminal.ended() == -6
        terminal.until("localspec ended suddenly. All messages are in the history: start it again.")
        terminal.until("x.c:1: GGML_ASSERT(eps >= 0.0f) failed")
        assert terminal.raw.rfind(b"\x1b[?7h") > terminal.raw.rfind(b"\x1b[?7l")  # lines wrap
        log = tmp_path / "cache" / "chat.log"
        assert f"The log is {log}".replace(" ", "") in "".join(terminal.text.split())
    with opened(home=tmp_path, columns=140) as terminal:
        terminal.until(EMBEDDED)
        terminal.until(lambda: "Tell me a story" in " ".join(terminal.column(0, 32)))
    assert said(tmp_path) == ["Tell me a story about a fox."]


def test_an_error_in_the_app_itself(tmp_path: Path) -> None:
    broken = "from localspec.tui.app import ChatApp\nChatApp.action_command = lambda *_: 1 / 0"
    with chat("chat", command=patched(broken), home=tmp_path) as terminal:
        terminal.until(EMBEDDED)
        terminal.type("hello\r")
        terminal.until("tok/s")
        terminal.type("\x1bOQ")  # F2
        assert terminal.ended() == 1
        assert not terminal.alternate
        log = tmp_path / "cache" / "chat.log"
        assert "The chat ended with an internal error" in terminal.words
        assert "".join(f"described in {log}.".split()) in "".join(terminal.text.split())
        assert "ZeroDivisionError" in log.read_text()
        assert "Traceback" not in terminal.text
    assert said(tmp_path) == ["hello"]
