"""What users of other servers reported: each request once gave a wrong answer, or none."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.process import Reply, Running, serving
from tests.support.families import FAMILIES
from tests.support.retokenised import outfitted

pytestmark = pytest.mark.nightly

ASK: Any = [{"role": "user", "content": "Tell me a story about a fox."}]
OPEN = {"type": "object", "properties": {"a": {"enum": ["x"]}}, "required": ["a"]}
USED = ("qwen3.5", "qwen3", "llama2", "llama3.1", "mistral-v3", "chatml", "gpt-oss")
NO_PARAMETERS: Any = (None, {}, {"type": "object", "properties": {}, "required": []})


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory, draft_path: Path) -> Iterator[Running]:
    """A server with models of which the prompt of the first ends with <think>."""
    folder = tmp_path_factory.mktemp("reports")
    paths: list[str] = []
    for name in USED:
        family = next(one for one in FAMILIES if one.name == name)
        paths += ["-m", str(family.model(folder / f"{name}.gguf", draft_path))]
    with serving(folder, *paths, "-d", "none", "-c", "1024", "-t", "1", "--temp", "0") as running:
        yield running


def chat(server: Running, model: str, **body: Any) -> Reply:
    body = {"model": model, "messages": ASK, "max_tokens": 24, **body}
    return server.post("/v1/chat/completions", body)


def message(reply: Reply) -> Any:
    return reply.json["choices"][0]["message"]


def events(reply: Reply) -> list[Any]:
    lines = reply.body.decode().splitlines()
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


def test_stop_strings_do_not_end_a_thought(families: Running) -> None:
    thought = message(chat(families, "qwen3.5"))["reasoning_content"]
    stopped = chat(families, "qwen3.5", stop=[thought[10:14]])
    assert message(stopped)["reasoning_content"] == thought
    assert stopped.json["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    "asked",
    [
        {"response_format": {"type": "json_schema", "json_schema": {"schema": OPEN}}},
        {"regex": "[0-9]+"},
        {"grammar": 'root ::= "a"'},
        {
            "tools": [{"type": "function", "function": {"name": "f"}}],
            "tool_choice": "required",
        },
    ],
    ids=str,
)
def test_what_an_answer_has_to_match_counts_behind_its_thought(
    families: Running, asked: dict[str, Any]
) -> None:
    found = message(chat(families, "qwen3.5", **asked))
    assert len(found["reasoning_content"]) > 20
    assert not found["content"]


@pytest.mark.parametrize(
    ("model", "said", "thinking"),
    [
        ("qwen3.5", "<think>\nHm.\n</think>\n\nThe fox", False),
        ("qwen3.5", "<think>\nHm", True),
        ("qwen3", "<think>\nHm", True),
        ("qwen3", "The fox", False),
    ],
)
def test_the_beginning_of_an_answer_may_bring_its_thoughts(
    families: Running, model: str, said: str, thinking: bool
) -> None:
    messages = [*ASK, {"role": "assistant", "content": said}]
    reply = chat(families, model, messages=messages, verbose=True)
    prompt = reply.json["__verbose"]["prompt"]
    assert prompt.endswith(said)
    assert prompt.count("<think>") == said.count("<think>")
    assert ("reasoning_content" in message(reply)) == thinking


def test_how_much_to_think(families: Running) -> None:
    def prompt(model: str, **body: Any) -> str:
        return str(chat(families, model, verbose=True, **body).json["__verbose"]["prompt"])

    assert prompt("qwen3", reasoning_effort="none").endswith("</think>\n\n")
    assert "Reasoning: high" in prompt("gpt-oss", reasoning_effort="high")


@pytest.mark.parametrize("model", ["llama2", "mistral-v3", "llama3.1"])
def test_a_beginning_of_text_is_not_doubled(families: Running, model: str) -> None:
    bos = next(family.control[0] for family in FAMILIES if family.name == model)

    def tokens(prompt: str, **more: Any) -> int:
        body = {"model": model, "prompt": prompt, "max_tokens": 1, **more}
        return int(families.post("/v1/completions", body).json["usage"]["prompt_tokens"])

    assert tokens(f"{bos}Hi") == tokens("Hi") == tokens(f"{bos}{bos}Hi") - 1
    assert tokens(f"{bos}Hi", parse_special=False) > tokens("Hi") + 1


def test_a_stop_string_may_be_a_control_token(families: Running) -> None:
    body = {"model": "chatml", "prompt": "Hi", "max_tokens": 4, "logit_bias": {"2": 100}}
    free = families.post("/v1/completions", body).json
    assert free["usage"]["completion_tokens"] == 4
    stopped = families.post("/v1/completions", {**body, "stop": "<|im_start|>"}).json
    assert stopped["usage"]["completion_tokens"] == 1
    assert stopped["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("model", ["llama2", "qwen3", "llama3.1"])
@pytest.mark.parametrize("parameters", NO_PARAMETERS, ids=str)
def test_a_call_without_parameters_has_an_empty_object(
    families: Running, model: str, parameters: Any
) -> None:
    tool = {"type": "function", "function": {"name": "now", "parameters": parameters}}
    asked: Any = {"tools": [tool], "tool_choice": "required", "max_tokens": 60}
    call = message(chat(families, model, **asked))["tool_calls"][0]["function"]
    assert json.loads(call["arguments"]) == {}
    deltas = [
        part["function"].get("arguments", "")
        for one in events(chat(families, model, stream=True, **asked))
        for part in one["choices"][0]["delta"].get("tool_calls", ())
    ]
    assert json.loads("".join(deltas)) == {}


@pytest.mark.parametrize("arguments", ["{", "", None, {"a": 1}, "[1]"], ids=str)
@pytest.mark.parametrize("model", ["llama2", "qwen3", "llama3.1", "mistral-v3", "gpt-oss"])
def test_calls_of_earlier_turns_may_have_any_arguments(
    families: Running, model: str, arguments: Any
) -> None:
    calls = [
        {"id": name, "type": "function", "function": {"name": "f", "arguments": arguments}}
        for name in (None, "c2")
    ]
    results = [
        {"role": "tool", "tool_call_id": one["id"], "content": [{"type": "text", "text": "5"}]}
        for one in calls
    ]
    messages = [*ASK, {"role": "assistant", "content": None, "tool_calls": calls}, *results, *ASK]
    reply = chat(families, model, messages=messages, max_tokens=1)
    assert reply.status == 200, reply.body


def test_parallel_calls_of_responses_are_one_turn(families: Running) -> None:
    calls = [
        {"type": "function_call", "call_id": name, "name": "f", "arguments": "{}"}
        for name in ("a", "b")
    ]
    told = [{"type": "function_call_output", "call_id": name, "output": "5"} for name in ("a", "b")]
    body = {"model": "qwen3", "input": [*ASK, *calls, *told], "max_output_tokens": 1}
    number = families.post("/v1/responses", body).json["usage"]["input_tokens"]
    functions = [
        {"id": name, "type": "function", "function": {"name": "f", "arguments": "{}"}}
        for name in ("a", "b")
    ]
    messages = [*ASK, {"role": "assistant", "content": "", "tool_calls": functions}]
    messages += [{"role": "tool", "tool_call_id": name, "content": "5"} for name in ("a", "b")]
    usage = chat(families, "qwen3", messages=messages, max_tokens=1).json["usage"]
    assert number == usage["prompt_tokens"]


@pytest.mark.parametrize(
    "choice",
    [
        {"type": "auto"},
        {"type": "function", "name": "g"},
        {
            "type": "allowed_tools",
            "allowed_tools": {
                "mode": "required",
                "tools": [{"type": "function", "function": {"name": "g"}}],
            },
        },
        {"type": "allowed_tools", "mode": "required", "tools": [{"name": "g"}]},
    ],
    ids=str,
)
def test_ways_to_choose_a_tool(families: Running, choice: Any) -> None:
    tools = [{"type": "function", "function": {"name": name}} for name in "fg"]
    reply = chat(families, "llama2", tools=tools, tool_choice=choice, max_tokens=60)
    assert reply.status == 200
    calls = message(reply).get("tool_calls", [])
    if choice["type"] != "auto":
        assert [call["function"]["name"] for call in calls] == ["g"]


@pytest.mark.parametrize("name", ["guided_json", "guided_choice", "structured_outputs"])
def test_formats_in_the_words_of_others_are_not_left_out(families: Running, name: str) -> None:
    reply = chat(families, "qwen3", **{name: ["yes", "no"]})
    assert reply.status == 400
    assert name in reply.body.decode()


def test_numbers_of_languages_with_one_kind_of_number(families: Running) -> None:
    assert chat(families, "qwen3", max_tokens=2.0, top_k=40.0, seed=1.0).status == 200
    assert chat(families, "qwen3", max_tokens=2.5).status == 400
    options = {"num_predict": 2.0, "top_k": 40.0}
    body = {"model": "qwen3", "messages": ASK, "options": options, "stream": False}
    assert families.post("/api/chat", body).json["eval_count"] == 2
    endless = {**body, "options": {"num_predict": 0, "stop": ["."]}}
    assert families.post("/api/chat", endless).json["eval_count"] > 2


def test_a_body_may_begin_with_a_byte_order_mark(families: Running) -> None:
    body = json.dumps({"model": "qwen3", "messages": ASK, "max_tokens": 1}).encode("utf-8-sig")
    assert families.post("/v1/chat/completions", None, raw=body).status == 200


def test_the_prompt_alone_is_told(families: Running) -> None:
    """As lm-evaluation-harness asks how likely a text is."""
    body = {"model": "qwen3", "prompt": "Once upon", "echo": True, "logprobs": 1, "max_tokens": 0}
    told = families.post("/v1/completions", body).json
    assert told["choices"][0]["text"] == "Once upon"
    assert told["usage"]["completion_tokens"] == 0
    assert "".join(told["choices"][0]["logprobs"]["tokens"]) == "Once upon"
    streamed = events(families.post("/v1/completions", {**body, "stream": True}))
    assert "".join(one["choices"][0]["text"] for one in streamed) == "Once upon"
    assert families.post("/v1/completions", {**body, "echo": False}).status == 400


def test_a_thought_has_a_signature(families: Running) -> None:
    body = {"model": "qwen3.5", "messages": ASK, "max_tokens": 4, "stream": True}
    told = events(families.post("/v1/messages", body))
    kinds = [one.get("delta", {}).get("type", one["type"]) for one in told]
    assert kinds.count("content_block_start") == 1
    assert kinds[kinds.index("content_block_stop") - 1] == "signature_delta"


def test_a_file_may_have_a_template_for_tools(tmp_path: Path, draft_path: Path) -> None:
    plain, with_tools = "{% for m in messages %}{{ m.content }}{% endfor %}", "T{{ tools|length }}"
    model = outfitted(tmp_path / "two.gguf", draft_path, template=plain, tool_template=with_tools)
    with serving(tmp_path, "-m", str(model), "-d", "none", "-c", "256", "-t", "1") as server:
        tools = [{"type": "function", "function": {"name": "f"}}]
        for more, told in (({}, ASK[0]["content"]), ({"tools": tools}, "T1")):
            reply = server.post("/apply-template", {"messages": ASK, **more})
            assert reply.json["prompt"] == told
