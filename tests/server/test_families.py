"""Every family's template through every route: protocols, command line and Python."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from localspec import load
from tests.server.process import Running, serving
from tests.support.families import FAMILIES, Family

pytestmark = pytest.mark.nightly

families = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
SYSTEM = {"role": "system", "content": "S"}
TOOL: Any = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
CALL: Any = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": "{}"}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, draft_path: Path) -> Path:
    found = tmp_path_factory.mktemp("routes")
    for family in FAMILIES:
        family.model(found / f"{family.name}.gguf", draft_path)
    return found


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Running]:
    """One server with all the models, of which one at a time is open."""
    models = [part for one in FAMILIES for part in ("-m", str(folder / f"{one.name}.gguf"))]
    with serving(folder, *models, "-d", "none", "-c", "1024", "-t", "1", "--temp", "0") as running:
        yield running


def forged(family: Family) -> str:
    return "U" + " Yes".join(family.control)


@families
def test_protocols(family: Family, server: Running) -> None:
    """One conversation has as many tokens on all of them; forged turns, and tools, are answered."""
    ask = {"role": "user", "content": forged(family)}
    few: dict[str, Any] = {"model": family.name, "max_tokens": 2}
    talk = [SYSTEM, ask]
    openai = server.post("/v1/chat/completions", {**few, "messages": talk})
    assert openai.status == 200, openai.body
    number = openai.json["usage"]["prompt_tokens"]
    anthropic = server.post("/v1/messages", {**few, "system": "S", "messages": [ask]}).json
    read = anthropic["usage"]["input_tokens"] + anthropic["usage"]["cache_read_input_tokens"]
    options = {"num_predict": 2}
    body = {"model": family.name, "messages": talk, "stream": False, "options": options}
    ollama = server.post("/api/chat", body).json["prompt_eval_count"]
    responses = server.post(
        "/v1/responses",
        {"model": family.name, "instructions": "S", "input": ask["content"]}
        | {"max_output_tokens": 2},
    ).json["usage"]["input_tokens"]
    assert (read, ollama, responses) == (number, number, number)
    called = [ask, {"role": "assistant", "content": None, "tool_calls": [CALL]}]
    called += [{"role": "tool", "tool_call_id": "c", "content": "Rain."}]
    for messages in (called, [SYSTEM, SYSTEM, ask, ask]):
        reply = server.post("/v1/chat/completions", {**few, "messages": messages, "tools": [TOOL]})
        assert reply.status == 200, reply.body


@families
def test_command_line_and_python(family: Family, folder: Path) -> None:
    path, said = folder / f"{family.name}.gguf", forged(family)
    command = [sys.executable, "-m", "localspec", "run", "-m", str(path), "-d", "none", "--temp"]
    command += ["0", "-n", "4", "-t", "1", "--system", "S", "--json", said]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    with load(path, draft=None, context=1024) as engine:
        messages = [SYSTEM, {"role": "user", "content": said}]
        answer = engine.chat(messages, max_tokens=4)
    assert f'"prompt_tokens": {answer.stats.prompt_tokens}' in ran.stdout


@pytest.mark.parametrize("special", [True, False])
def test_raw_text_spells_special_tokens_where_it_is_to(server: Running, special: bool) -> None:
    said = {"content": "Hi<|im_end|>", "parse_special": special, "add_special": True}
    body = {"model": "chatml", "prompt": said["content"], "parse_special": special, "n_predict": 1}
    assert server.post("/v1/completions", body).status == 200  # and chatml is the one that is open
    expected = len(server.post("/tokenize", said).json["tokens"])
    told = server.post("/v1/completions", body).json["usage"]["prompt_tokens"]
    assert told == server.post("/completion", body).json["tokens_evaluated"] == expected
    mixed = {**body, "prompt": [0, said["content"]]}
    assert server.post("/completion", mixed).json["tokens_evaluated"] == expected


def test_a_refusal_names_the_template_and_no_option(server: Running) -> None:
    messages = [{"role": "nobody", "content": "x"}]
    body = {"model": "qwen3.5", "messages": messages, "max_tokens": 1}
    reply = server.post("/v1/chat/completions", body)
    assert reply.status == 400
    said = reply.json["error"]["message"]
    assert "qwen3.5.gguf" in said
    assert "Unexpected message role" in said
    assert "--" not in said
