"""The chat is on the screen before anything heavy is loaded."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.tui.terminals import chat

pytestmark = pytest.mark.nightly

HEAVY = ("llama_cpp", "numpy", "sqlite_utils", "sqlite3", "huggingface_hub", "jinja2")
UP_TO_THE_PAINT = """
import json, pathlib, sys
from localspec.cli.main import main
from localspec.tui.app import ChatApp

def begin(app):
    pathlib.Path(sys.argv[1]).write_text(json.dumps(sorted(sys.modules)))
    app.exit()

ChatApp._begin = begin
sys.exit(main(["chat", *sys.argv[2:]]))
"""


@pytest.mark.parametrize("arguments", [(), ("-m", "some.gguf", "--ctx", "512", "--system", "Hi")])
def test_nothing_heavy_is_imported_before_the_first_paint(
    arguments: tuple[str, ...], tmp_path: Path
) -> None:
    loaded = tmp_path / "modules.json"
    command = (sys.executable, "-c", UP_TO_THE_PAINT, str(loaded), *arguments)
    # An option would do as well as this variable, which has the settings read.
    with chat(command=command, home=tmp_path, LOCALSPEC_THREADS="") as terminal:
        terminal.until("Write a message")
        assert terminal.ended() == 0
    modules = set(json.loads(loaded.read_text()))
    assert "textual.app" in modules
    assert modules.isdisjoint(HEAVY), modules.intersection(HEAVY)
    assert "pydantic_settings" not in modules
