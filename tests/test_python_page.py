"""docs/python.md: its blocks of Python, and the desktop tool without a display."""

import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic, sleep
from types import ModuleType
from typing import Any

import pytest

pytestmark = pytest.mark.nightly

DOCS = Path(__file__).parents[1] / "docs"
PAGE = (DOCS / "python.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
PATIENCE = 60.0


def test_page_has_examples() -> None:
    assert len(BLOCKS) >= 5
    assert "](desktop_tool.py)" in PAGE


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_examples_run(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(BLOCKS[number], f"python.md, block {number + 1}", "exec"), {})
    shown = capsys.readouterr().out
    assert len(shown) > 20 or "print" not in BLOCKS[number]


class TextPane:
    """A pane without a window."""

    def __init__(self) -> None:
        self.text, self.remark, self.pieces = "", "", 0
        self.thread = threading.get_ident()

    def add(self, text: str) -> None:
        assert not self.remark, "nothing comes after the end"
        assert threading.get_ident() == self.thread, "the window's thread alone shows anything"
        self.text += text
        self.pieces += 1

    def end(self, remark: str) -> None:
        assert threading.get_ident() == self.thread
        self.remark = remark


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    module = ModuleType("desktop_tool")
    exec(compile((DOCS / "desktop_tool.py").read_text(), "desktop_tool.py", "exec"), vars(module))
    return module


@pytest.fixture
def assistant(tool: ModuleType) -> Iterator[Any]:
    found = tool.Assistant(context=1024)
    yield found
    found.close()
    # The one that makes the passes of shared answers lives as long as the process.
    names = [each.name for each in threading.enumerate() if each.name != "localspec-compute"]
    assert not [name for name in names if name.startswith(("assistant", "localspec-"))]


def look_until(assistant: Any, condition: Callable[[], bool]) -> None:
    """Poll as the window's timer does, until a condition holds."""
    began = monotonic()
    while not condition():
        assert monotonic() - began < PATIENCE
        assistant.pump()
        sleep(0.002)


def test_two_answers_do_not_block_the_window(assistant: Any) -> None:
    fox, bear = TextPane(), TextPane()
    assistant.ask("Tell me a story about a fox.", fox)
    assistant.ask("And about a bear.", bear)
    look_until(assistant, lambda: bool(fox.remark and bear.remark))
    for pane in (fox, bear):
        assert len(pane.text) > 20
        assert re.fullmatch(r"\d+ tokens, \d+ per second", pane.remark)
        assert pane.pieces > 5, "it came bit by bit"


@pytest.mark.parametrize("begun", [True, False], ids=["in the middle", "while the model loads"])
def test_one_answer_can_be_stopped(assistant: Any, begun: bool) -> None:
    fox, bear = TextPane(), TextPane()
    stop = assistant.ask("Tell me a story about a fox.", fox)
    assistant.ask("And about a bear.", bear)
    look_until(assistant, lambda: bool(fox.text) or not begun)
    stop()
    look_until(assistant, lambda: bool(fox.remark and bear.remark))
    assert (bool(fox.text), fox.remark) == (begun, "stopped")
    assert "tokens" in bear.remark


def test_close_during_an_answer(assistant: Any) -> None:
    pane = TextPane()
    assistant.ask("Tell me a story about a fox.", pane)
    look_until(assistant, lambda: bool(pane.text))


def test_missing_model(tool: ModuleType) -> None:
    assistant, pane = tool.Assistant("/nowhere/model.gguf"), TextPane()
    assistant.ask("Tell me a story about a fox.", pane)
    look_until(assistant, lambda: bool(pane.remark))
    assert "/nowhere/model.gguf" in pane.remark
    assistant.close()
