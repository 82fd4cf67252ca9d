"""localspec's models in the `llm` command."""

import json
import os
import re
import sys
from pathlib import Path

import llm
import pytest

from localspec import llm_plugin
from localspec.llm_plugin import LlmModel
from tests.cli.process import environment, finished

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def model() -> LlmModel:
    return LlmModel("demo")


def test_local_models_are_registered() -> None:
    found: list[LlmModel] = []
    llm_plugin.register_models(found.append)
    assert "localspec/demo" in [one.model_id for one in found]


def test_answer_and_usage(model: LlmModel) -> None:
    response = model.prompt("Tell me a story.", max_tokens=12, temperature=0)
    text = "".join(response)
    assert (len(text) > 10, response.usage().output) == (True, 12)
    again = model.prompt("Tell me a story.", max_tokens=12, temperature=0, stream=False)
    assert again.text() == text


def test_conversation_is_continued(model: LlmModel) -> None:
    conversation = llm.Conversation(model=model)
    first = conversation.prompt("Tell me a story.", system="Be kind. " * 9, max_tokens=8)
    first.text()
    for second in (conversation.prompt("Go on.", max_tokens=8), first.reply("Go on.")):
        second.text()
        assert (second.usage().input or 0) > (first.usage().input or 0) + 8


def test_schema(model: LlmModel) -> None:
    schema = {"type": "object", "properties": {"good": {"type": "boolean"}}, "required": ["good"]}
    response = model.prompt("Is it good?", schema=schema, max_tokens=60)
    assert isinstance(json.loads(response.text())["good"], bool)


def test_llm_command(tmp_path: Path) -> None:
    """Uses the declared entry point, however localspec was installed."""
    root = Path(__file__).parents[1]
    project = (root / "pyproject.toml").read_text(encoding="utf-8")
    (declared,) = re.findall(r"^\[project.entry-points.llm\]\n(\w+) = \"([\w.]+)\"", project, re.M)
    installed = tmp_path / "localspec-0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: localspec\nVersion: 0\n")
    (installed / "entry_points.txt").write_text(f"[llm]\n{declared[0]} = {declared[1]}\n")
    variables = {"LLM_USER_PATH": str(tmp_path), "PYTHONPATH": f"{tmp_path}{os.pathsep}{root}"}
    command = (sys.executable, "-m", "llm", "Hi", "-o", "max_tokens", "5", "--usage")
    read = []
    for option in (("-m", "localspec/demo"), ("--continue",)):
        ended = finished(command=(*command, *option), env=environment(**variables))
        assert ended.succeeded().strip()
        read.append(int(re.findall(r"(\d+) input", ended.err)[0]))
    assert read[1] > read[0] + 5
