"""The `llm` command as a client of the server: whole and streamed, schema, tools, interrupts,
errors."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.process import PATIENCE, Running, serving, wait_until

pytestmark = pytest.mark.nightly

TOOL = "def weather() -> str:\n    return 'It rains in Rome.'\n"


class Command:
    """`llm` with a model at a server."""

    def __init__(self, server: Running, folder: Path) -> None:
        self._folder = folder
        text = f"""
- model_id: here
  model_name: local
  api_base: {server.address}/v1
  api_key_name: here
  supports_schema: true
  supports_tools: true
"""
        (folder / "extra-openai-models.yaml").write_text(text)
        (folder / "keys.json").write_text(json.dumps({"here": server.key}))

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            return subprocess.Popen(
                [sys.executable, "-m", "llm", "-m", "here", *arguments],
                env={"LLM_USER_PATH": str(self._folder), "PATH": "", "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        finally:
            signal.signal(signal.SIGINT, before)

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        with self.start(*arguments) as process:
            said, told = process.communicate(timeout=PATIENCE)
        return process.returncode, said, told


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    arguments = ("-c", "2048", "-t", "1", "--temp", "0", "--drafter", "none")
    with serving(tmp_path_factory.mktemp("shown"), *arguments, key="sk-llm") as running:
        yield running


@pytest.fixture
def command(shown: Running, tmp_path: Path) -> Command:
    return Command(shown, tmp_path)


def test_streamed_and_whole_are_the_same(command: Command) -> None:
    asked = ("Tell me a story.", "-o", "max_tokens", "30")
    status, streamed, _ = command(*asked)
    assert (status, command(*asked, "--no-stream")[1]) == (0, streamed)
    assert len(streamed) > 30


def test_a_schema(command: Command) -> None:
    status, said, told = command("Invent a dog.", "--schema", "legs int", "-o", "max_tokens", "40")
    assert status == 0, told
    assert set(json.loads(said)) == {"legs"}


def test_a_tool_is_called_and_its_result_is_read(command: Command, shown: Running) -> None:
    """The embedded model calls whatever it can, also when it is told the result."""
    before = shown.metric("localspec:answers_total")
    asked = ("What is the weather?", "--functions", TOOL, "--td", "--chain-limit", "2")
    _, _, told = command(*asked, "-o", "max_tokens", "60")
    assert "Tool call: weather({})" in told
    assert "It rains in Rome." in told
    assert shown.metric("localspec:answers_total") == before + 2


def test_an_interrupt_frees_the_slot(command: Command, shown: Running) -> None:
    cancelled = shown.metric('localspec:answers_total{finish="cancelled"}')
    with command.start("Tell me a story.", "-o", "logit_bias", json.dumps(no_end())) as process:
        wait_until(lambda: not shown.idle, "it is being answered")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE)
    assert process.returncode != 0
    shown.wait_until_idle()
    assert shown.metric('localspec:answers_total{finish="cancelled"}') == cancelled + 1


def no_end() -> dict[str, int]:
    """A bias against the ends of an answer: the first tokens of the embedded vocabulary."""
    return {str(token): -100 for token in range(4)}


def test_errors_are_sentences(command: Command, shown: Running, tmp_path: Path) -> None:
    status, said, told = command("fox " * 3000)
    assert (status, said) == (1, "")
    assert "exceeds the available context size" in told
    (tmp_path / "keys.json").write_text('{"here": "wrong"}')
    status, _, told = command("Hello")
    assert status == 1
    assert "401" in told
