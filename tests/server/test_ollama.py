"""ollama's endpoints, as its clients use them."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.server.bodies import ASK, function, user
from tests.server.process import Running, serving

pytestmark = pytest.mark.nightly

FEW = {"num_predict": 12}


def test_chat(server: Running) -> None:
    body = {"model": "any", "messages": ASK, "options": FEW}
    whole = server.post("/api/chat", {**body, "stream": False}).json
    streamed = server.post("/api/chat", body).events
    text = "".join(line["message"]["content"] for line in streamed)
    assert text == whole["message"]["content"]
    assert len(text) > 5
    assert [line["done"] for line in streamed] == [False] * (len(streamed) - 1) + [True]
    for last in (whole, streamed[-1]):
        assert (last["done_reason"], last["eval_count"]) == ("length", 12)
        assert last["eval_duration"] > 0


def test_generate(server: Running) -> None:
    body = {"prompt": "Tell me a story about a fox.", "options": FEW, "stream": False}
    chat = server.post("/api/chat", {"messages": ASK, "options": FEW, "stream": False}).json
    assert server.post("/api/generate", body).json["response"] == chat["message"]["content"]
    raw = server.post("/api/generate", {**body, "raw": True}).json["response"]
    assert raw != chat["message"]["content"]
    streamed = server.post("/api/generate", {**body, "stream": True}).events
    assert "".join(line["response"] for line in streamed) == chat["message"]["content"]


def test_tool_calls(server: Running) -> None:
    tool = function("clock", parameters={"type": "object"})
    options = {"temperature": 1.0, "num_predict": 150}
    called = 0
    for seed in range(4):
        body = {"messages": ASK, "tools": [tool], "options": {**options, "seed": seed}}
        whole = server.post("/api/chat", {**body, "stream": False}).json["message"]
        streamed = server.post("/api/chat", body).events
        assert streamed[-1]["done"]
        assert '"response"' not in whole["content"]
        assert bool(whole.get("tool_calls")) != bool(whole["content"])
        calls = [c for line in streamed for c in line["message"].get("tool_calls", [])]
        calls += whole.get("tool_calls", [])
        called += len(calls)
        assert all(isinstance(call["function"]["arguments"], dict) for call in calls)
        assert all(call["id"] for call in calls)
        goes_on = [*ASK, whole, {"role": "tool", "tool_name": "clock", "content": "Noon."}]
        after = {"messages": goes_on, "options": FEW, "stream": False}
        assert server.post("/api/chat", after).status == 200
    assert called


def test_model_information(server: Running) -> None:
    (model,) = server.get("/api/tags").json["models"]
    assert model["details"]["quantization_level"].upper() == "Q8_0"
    assert server.get("/api/ps").json["models"][0]["name"] == model["name"]
    shown = server.post("/api/show", {"model": model["name"]}).json
    assert shown["capabilities"] == ["completion"]
    about = shown["model_info"]
    assert about["general.architecture"] == "llama"
    assert about["llama.context_length"] == 1024  # the server's, not the model's
    assert "num_ctx 1024\n" in shown["parameters"]
    assert about["tokenizer.ggml.tokens"] is None
    version = server.get("/api/version").json["version"]
    assert [*map(int, version.split("."))] >= [0, 13, 4]  # the least with Responses, for Codex


def test_a_file_that_is_moved_while_it_is_open(draft_path: Path, tmp_path: Path) -> None:
    odd = os.fsdecode(b"\xff.gguf")
    file = Path(shutil.copy(draft_path, tmp_path / odd))
    with serving(tmp_path, "-m", str(file), "--alias", "fox", "-c", "256", "-t", "1") as server:
        before = server.get("/api/tags").json["models"][0]
        assert before["size"] == file.stat().st_size
        file.rename(tmp_path / "moved.gguf")
        for path in ("/api/tags", "/api/ps"):
            assert server.get(path).json["models"][0]["name"] == before["name"]
        shown = server.post("/api/show", {"model": "fox"})
        assert shown.json["model_info"]["general.architecture"] == "llama"
        assert server.post("/api/generate", {"prompt": "A", "options": FEW}).status == 200


def test_empty_request_loads_the_model(server: Running) -> None:
    unset = dict.fromkeys(("messages", "prompt", "stream", "options"))  # as Go's clients
    for path in ("/api/chat", "/api/generate"):
        for body in ({"model": "any"}, {"model": "any", **unset}):
            assert server.post(path, body).json["done_reason"] == "load"
    assert server.post("/api/pull", {"model": "any"}).json == {"status": "success"}


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [user("x", images=["aGk="])]},
        {"messages": ASK, "format": "xml"},
        {"messages": ASK, "options": {"temperature": "hot"}},
        *({"messages": "x"}, {"prompt": "A", "raw": True, "system": "S"}),
        {"prompt": "A", "template": "{{ .Prompt }}"},
    ],
)
def test_errors_have_ollamas_format(server: Running, body: dict[str, Any]) -> None:
    reply = server.post("/api/chat" if "messages" in body else "/api/generate", body)
    assert (reply.status, type(reply.json["error"])) == (400, str)


def test_keep_alive_durations(server: Running) -> None:
    for given in (10, -1, 2.5, "10", "-1", "5m", "1h30m", "1.5h", ""):
        body = {"messages": ASK, "options": FEW, "stream": False, "keep_alive": given}
        assert server.post("/api/chat", body).status == 200
    for given in ("abc", "5x", "1" * 10_000 + "x"):
        error = server.post("/api/chat", {"messages": ASK, "keep_alive": given}).error()
        assert "keep_alive: give seconds, or a text such as 5m" in error
