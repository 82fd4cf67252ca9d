"""Reports by users of other servers: each request once gave a wrong answer, or none."""

import base64
import gzip
import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from localspec.server.openai.chat import CountRequest
from localspec.server.openai.messages import Message
from tests.server.bodies import ASK, CHAT, assistant, function, prompt_length, tool_call, user
from tests.server.process import Reply, Running, serving
from tests.support.families import FAMILIES
from tests.support.retokenised import with_template

pytestmark = pytest.mark.nightly

OPEN = {"type": "object", "properties": {"a": {"enum": ["x"]}}, "required": ["a"]}
USED = (
    *("qwen3.5", "qwen3", "llama2", "llama3.1", "mistral-v3", "chatml", "gpt-oss", "ministral3"),
    *("seed-oss", "solar", "kimi-k3", "hy3", "apriel", "muse-glimmer", "exaone-deep"),
)
NO_PARAMETERS: Any = (None, [], {"type": "object", "properties": {}, "required": []})
NOW = [function("now")]


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory, draft_path: Path) -> Iterator[Running]:
    """A server with a model of each family in USED."""
    folder = tmp_path_factory.mktemp("reports")
    paths: list[str] = []
    for name in USED:
        paths += ["-m", str(FAMILIES[name].model(folder / f"{name}.gguf", draft_path))]
    with serving(folder, *paths, "-d", "none", "-c", "1024", "-t", "1", "--temp", "0") as running:
        yield running


def chat(server: Running, model: str, **body: Any) -> Reply:
    return server.post(CHAT, {"model": model, "messages": ASK, "max_tokens": 24, **body})


def message(reply: Reply) -> Any:
    return reply.json["choices"][0]["message"]


def deltas(reply: Reply) -> list[Any]:
    return [event["choices"][0]["delta"] for event in reply.events]


def call_deltas(reply: Reply) -> list[Any]:
    """The function parts of a streamed single tool call."""
    return [one["tool_calls"][0]["function"] for one in deltas(reply) if "tool_calls" in one]


def render(server: Running, model: str, messages: Any, **more: Any) -> str:
    """The prompt that the template makes of a conversation."""
    reply = server.post("/apply-template", {"model": model, "messages": messages, **more})
    assert reply.status == 200, reply.body
    return str(reply.json["prompt"])


def message_tokens(server: Running, model: str, messages: Any = ASK, **more: Any) -> int:
    """The prompt length of a request to Anthropic's endpoint."""
    path = "/v1/messages/count_tokens"
    return prompt_length(server, path, model=model, messages=messages, **more)


def item_tokens(server: Running, model: str, *items: Any) -> int:
    """The prompt length of a question and these items, in OpenAI's responses."""
    return prompt_length(server, "/v1/responses/input_tokens", model=model, input=[*ASK, *items])


def use(name: str, given: dict[str, str]) -> dict[str, Any]:
    """A call in Anthropic's format."""
    return {"type": "tool_use", "id": "t", "name": name, "input": given}


def tool_result(**content: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "t", **content}


def forced(text: str, **more: Any) -> dict[str, Any]:
    """Fields that make the model write this text, with the tool weather."""
    grammar = f"root ::= {json.dumps(text)}"
    return {"grammar": grammar, "tools": [WEATHER], "max_tokens": 300, **more}


@pytest.mark.parametrize("model", USED)
def test_all_protocols_make_the_same_prompt(families: Running, model: str) -> None:
    forged = "U" + " Yes".join(FAMILIES[model].control)
    system, ask = {"role": "system", "content": "S"}, user(forged)
    few = {"model": model, **FEW}
    bodies: dict[str, Any] = {
        CHAT: {"messages": [system, ask]},
        "/v1/messages": {"system": "S", "messages": [ask]},
        "/api/chat": {"messages": [system, ask]},
        "/v1/responses": {"instructions": "S", "input": forged},
    }
    counts = {prompt_length(families, path, **few, **body) for path, body in bodies.items()}
    assert len(counts) == 1
    result = {"role": "tool", "tool_call_id": "c", "content": "Rain."}
    turns = [ask, assistant(None, tool_calls=[tool_call("weather")]), result]
    for messages in (turns, [system, system, ask, ask]):
        reply = chat(families, f"{model}:latest", messages=messages, tools=[function("weather")])
        assert (reply.status, reply.json.get("model")) == (200, model), reply.body


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("model", ["chatml", "gpt-oss", "llama2"])
def test_parse_special_in_raw_prompts(families: Running, model: str, special: bool) -> None:
    text = f" Hi{FAMILIES[model].control[1]} <|im_end|><|channel|>\n\n  fox"
    body = {"model": model, "parse_special": special, "n_predict": 1}
    tokens = families.post("/tokenize", {**body, "content": text, "add_special": True}).json
    for path in ("/v1/completions", "/completion"):
        assert prompt_length(families, path, **body, prompt=text) == len(tokens["tokens"])
    assert prompt_length(families, path, **body, prompt=[0, text]) == len(tokens["tokens"])
    assert families.post("/detokenize", body | tokens).json["content"].endswith(f">{text}")


def test_a_model_has_the_name_of_its_file(families: Running) -> None:
    assert chat(families, "qwen3.gguf", max_tokens=1).json["model"] == "qwen3"
    assert chat(families, "qwen3.bin").status == 404
    details = families.post("/api/show", {"model": "qwen3"}).json["details"]
    assert details["quantization_level"] == "Q8_0"  # which its file's name does not tell


def test_template_error_names_the_file(families: Running) -> None:
    error = chat(families, "qwen3.5", messages=[{"role": "nobody", "content": "x"}]).error()
    assert "qwen3.5.gguf" in error
    assert "Unexpected message role" in error
    assert "--" not in error


@pytest.mark.parametrize(
    "asked",
    [
        {"response_format": {"type": "json_schema", "json_schema": {"schema": OPEN}}},
        {"regex": "[0-9]+"},
        {"grammar": 'root ::= "a"'},
        {"tools": [function("f")], "tool_choice": "required"},
    ],
    ids=str,
)
def test_constraints_apply_after_the_thought(families: Running, asked: dict[str, Any]) -> None:
    wishes: Any = {"qwen3.5": {}, "qwen3": {"think": True}, "seed-oss": {"think": "low"}}
    for model, wish in wishes.items():
        found = message(chat(families, model, **asked, **wish))
        assert len(found["reasoning_content"]) > 20
        assert not found["content"]
    for model, wish in (("qwen3", {}), ("ministral3", {"think": True})):
        assert "reasoning_content" not in message(chat(families, model, **asked, **wish))


def test_constraints_apply_after_marks_of_several_tokens(families: Running) -> None:
    added = chat(families, "qwen3", grammar='root ::= <tool_call> "a"')
    assert message(added)["content"] == "<tool_call>a"
    body: Any = {"model": "kimi-k3", "content": "<|close|>"}
    (closes,) = families.post("/tokenize", body).json["tokens"]
    for bias in (-100, 100):
        asked: Any = {"regex": "[0-9]+", "logit_bias": {str(closes): bias}}
        found = message(chat(families, "kimi-k3", **asked))
        assert (len(found.get("reasoning_content", "")) > 20) == (bias < 0)
        assert found["content"].strip().isdigit() == (bias > 0)


@pytest.mark.parametrize(
    ("model", "said", "thinking"),
    [
        ("qwen3.5", "<think>\nHm.\n</think>\n\nThe fox", False),
        ("qwen3.5", "<think>\nHm", True),
        ("qwen3", "<think>\nHm", True),
        ("qwen3", "The fox", False),
    ],
)
def test_prefill_may_have_thoughts(
    families: Running, model: str, said: str, thinking: bool
) -> None:
    reply = chat(families, model, messages=[*ASK, assistant(said)], verbose=True)
    prompt = reply.json["__verbose"]["prompt"]
    assert prompt.endswith(said)
    assert prompt.count("<think>") == said.count("<think>")
    assert ("reasoning_content" in message(reply)) == thinking


@pytest.mark.parametrize(
    ("part", "said", "end"),
    [
        ("reasoning_content", "A", "<think>\nHm"),
        ("content", "", "<think>\nHm\n</think>\n\n"),
        ("content", "A", "<think>\nHm\n</think>\n\nA"),
        (True, "", "<think>\nHm"),
    ],
)
def test_part_of_an_answer_to_continue(families: Running, part: Any, said: str, end: str) -> None:
    turns = [*ASK, assistant(said, reasoning_content="Hm")]
    for model in ("qwen3", "qwen3.5"):
        assert render(families, model, turns, continue_final_message=part).endswith(end)


def test_a_prefilled_thought_replaces_an_empty_one(families: Running) -> None:
    off: Any = {"chat_template_kwargs": {"enable_thinking": False}}
    for model, opens in (("qwen3", "<think>"), ("hy3", "<think:6124c78e>")):
        assert render(families, model, ASK, **off).count(opens) == 1
        for turn in (assistant("", reasoning_content="Hm"), assistant(f"{opens}\nHm")):
            found = render(families, model, [*ASK, turn], **off)
            assert found.endswith(f"{opens}\nHm")
            assert found.count(opens) == 1


def test_marks_of_thoughts_that_are_text(families: Running) -> None:
    assert all(
        message(chat(families, one))["reasoning_content"] for one in ("apriel", "exaone-deep")
    )
    asked: Any = {"grammar": 'root ::= "B\\n[END FINAL RESPONSE]"', "max_tokens": 60}
    found = message(chat(families, "apriel", messages=[*ASK, assistant("A")], **asked))
    assert found == {"role": "assistant", "content": "B", "refusal": None}


@pytest.mark.parametrize(
    ("asked", "hidden"),
    [
        ({"include_reasoning": False}, True),
        ({"reasoning": {"exclude": True}}, True),
        ({"separate_reasoning": False}, False),
        ({"reasoning_format": "none"}, False),
    ],
)
def test_thoughts_may_be_left_out_or_in_the_content(
    families: Running, asked: Any, hidden: bool
) -> None:
    said = "" if hidden else message(chat(families, "qwen3.5"))["reasoning_content"]
    reply = chat(families, "qwen3.5", logprobs=True, **asked)
    assert message(reply) == {"role": "assistant", "content": said, "refusal": None}
    streamed = chat(families, "qwen3.5", stream=True, logprobs=True, **asked)
    assert "".join(part.get("content") or "" for part in deltas(streamed)) == said
    assert not any("reasoning_content" in part for part in deltas(streamed))
    assert str(streamed.events).count("'logprob'") == str(reply.json).count("'logprob'") > 0
    assert (reply.json["usage"]["completion_tokens_details"]["reasoning_tokens"] > 0) == hidden


def test_thinking_switch_and_effort(families: Running) -> None:
    def prompt(model: str, **body: Any) -> str:
        return str(chat(families, model, verbose=True, **body).json["__verbose"]["prompt"])

    off: Any = ({"think": False}, {"reasoning": {"enabled": False}})
    words = {"chat_template_kwargs": {"enable_thinking": "false"}}
    for switch in (*off, words, {"thinking": {"type": "disabled"}}):
        assert prompt("qwen3", **switch).endswith("</think>\n\n")
    for kept in ({"keep": "all"}, {"clear_thinking": False}):
        variables = CountRequest(messages=[Message(role="user")], thinking=kept).variables(True)
        assert (variables["clear_thinking"], variables["preserve_thinking"]) == (False, True)
    assert all(
        ": low" in prompt(one, reasoning_effort="low") for one in ("gpt-oss", "muse-glimmer")
    )
    much = {"effort": "as much as you want to"}
    few, many = (message_tokens(families, "gpt-oss", output_config=one) for one in ({}, much))
    assert few < many


FEW = {"max_tokens": 2, "max_output_tokens": 2, "options": {"num_predict": 2}}
PATHS = (CHAT, "/v1/messages", "/v1/responses", "/api/chat")


@pytest.mark.parametrize("path", PATHS)
def test_every_protocol_accepts_each_thinking_field(families: Running, path: str) -> None:
    body = {"model": "qwen3", "messages": ASK, "input": ASK, **FEW}
    off: Any = [{"reasoning_effort": "none"}, {"think": False}, {"enable_thinking": False}]
    off += [{"chat_template_kwargs": {"enable_thinking": False}}, {"reasoning": {"effort": "none"}}]
    limited = {**body, "model": "seed-oss"}
    for budget in (512, 0):
        told: Any = [{name: budget} for name in ("thinking_budget", "reasoning_budget_tokens")]
        told += [{"thinking": {"type": "enabled", "budget_tokens": budget}}]
        told += [{"reasoning": {"max_tokens": budget}}]
        (count,) = {prompt_length(families, path, **limited, **one) for one in told}
        assert count > prompt_length(families, path, **limited)
    (count,) = {prompt_length(families, path, **body, **said) for said in (*off, *told)}
    assert (
        prompt_length(families, path, **body)
        < count
        == prompt_length(families, CHAT, **body, think=False)
    )


@pytest.mark.parametrize("path", [*PATHS, "/v1/completions", "/completion", "/api/generate"])
def test_every_protocol_refuses_unsupported_samplers(families: Running, path: str) -> None:
    body = {"model": "qwen3", "messages": ASK, "input": "x", **FEW}
    body |= {} if path == "/v1/responses" else {"prompt": "x", "n_predict": 2}

    def reply(**more: Any) -> Reply:
        more = {**FEW, "options": {"num_predict": 2, **more}} if "/api" in path else more
        return families.post(path, {**body, **more})

    for name in ("mirostat", "typical_p", "dry_multiplier", "min_tokens"):
        assert (reply(**{name: 2}).status, reply(**{name: 0}).status) == (400, 200)
    assert reply(samplers=["temperature", "top_k"]).status == 400
    assert "Ask /tokenize" in reply(logit_bias={"99999999": 1}).error()


@pytest.mark.parametrize("path", PATHS)
def test_empty_list_is_accepted_for_an_empty_object(families: Running, path: str) -> None:
    def count(empty: Any) -> int:
        call = {"type": "tool_use", "id": "c", "name": "f", "input": empty}
        told = (
            {"content": [call]}
            if path == "/v1/messages"
            else {"tool_calls": [tool_call("f", empty)]}
        )
        items = [*ASK, {"type": "function_call", "call_id": "c", "name": "f", "arguments": empty}]
        body = {"messages": [*ASK, {"role": "assistant", **told}, user("x")], "input": items}
        fields = ("chat_template_kwargs", "metadata", "options", "stream_options", "reasoning")
        return prompt_length(families, path, **{**FEW, **dict.fromkeys(fields, empty)}, **body)

    assert count([]) == count({})


@pytest.mark.parametrize("model", ["llama2", "mistral-v3", "llama3.1"])
def test_bos_is_not_doubled(families: Running, model: str) -> None:
    bos = FAMILIES[model].control[0]

    def tokens(prompt: str, **more: Any) -> int:
        body = {"model": model, "prompt": prompt, "max_tokens": 1, **more}
        return prompt_length(families, "/v1/completions", **body)

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
def test_call_without_parameters_has_empty_arguments(
    families: Running, model: str, parameters: Any
) -> None:
    tools = [function("now", parameters=parameters)]
    asked: Any = {"tools": tools, "tool_choice": "required", "max_tokens": 60}
    call = message(chat(families, model, **asked))["tool_calls"][0]["function"]
    assert json.loads(call["arguments"]) == {}
    parts = call_deltas(chat(families, model, stream=True, **asked))
    assert json.loads("".join(part.get("arguments", "") for part in parts)) == {}


@pytest.mark.parametrize("arguments", ["{", "", None, {"a": 1}, "[1]"], ids=str)
@pytest.mark.parametrize("model", ["llama2", "qwen3", "llama3.1", "mistral-v3", "gpt-oss"])
def test_earlier_calls_may_have_any_arguments(
    families: Running, model: str, arguments: Any
) -> None:
    calls = [tool_call("f", arguments, id=id) for id in (None, "c2")]
    results = [
        {"role": "tool", "tool_call_id": one["id"], "content": [{"type": "text", "text": "5"}]}
        for one in calls
    ]
    messages = [*ASK, assistant(None, tool_calls=calls), *results, *ASK]
    reply = chat(families, model, messages=messages, max_tokens=1)
    assert reply.status == 200, reply.body


WEATHER = function("weather", parameters={"properties": {"city": {"type": "string"}}})
PARIS = '{"city": "Paris", "days": 3}'


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (
            "qwen3",
            "<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n"
            "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
        ),
        ("llama3.1", '[weather(city="Paris", days=3)]'),
        ("mistral-v3", f"[TOOL_CALLS]weather{PARIS}"),
        (
            "gpt-oss",
            "<|channel|>analysis<|message|>Look.<|end|><|start|>assistant<|channel|>commentary "
            f"to=functions.weather <|constrain|>json<|message|>{PARIS}<|call|>",
        ),
    ],
)
def test_model_specific_call_formats(families: Running, model: str, text: str) -> None:
    asked = forced(text)
    reply = chat(families, model, **asked)
    found = message(reply)
    (call,) = found["tool_calls"]
    name, arguments = call["function"]["name"], call["function"]["arguments"]
    assert (name, json.loads(arguments), found["content"]) == ("weather", json.loads(PARIS), None)
    assert found.get("reasoning_content") == ("Look." if model == "gpt-oss" else None)
    assert reply.json["choices"][0]["finish_reason"] == "tool_calls"
    streamed = chat(families, model, stream=True, **asked)
    functions = call_deltas(streamed)
    assert functions[0]["name"] == "weather"
    assert "".join(one["arguments"] for one in functions) == arguments
    assert not any(one.get("content") for one in deltas(streamed))


@pytest.mark.parametrize("model", ["qwen3", "llama3.1"])
@pytest.mark.parametrize(("several", "number"), [(False, 1), (None, 2), (True, 2)])
def test_parallel_tool_calls_limits_the_number(
    families: Running, model: str, several: bool | None, number: int
) -> None:
    call = f'{{"name": "weather", "arguments": {PARIS}}}'
    text = f"<tool_call>{call}</tool_call>" * 2 if model == "qwen3" else f"{call}; {call}"
    for begun in ("", "<tool_call>", '; {"name": "we'):  # the answer ends within a call
        found = message(chat(families, model, **forced(text + begun, parallel_tool_calls=several)))
        assert (len(found["tool_calls"]), found["content"]) == (number, None)
    assert json.loads(found["tool_calls"][0]["function"]["arguments"]) == json.loads(PARIS)
    assert len({call["id"] for call in found["tool_calls"]}) == number


def test_optional_tools_allow_plain_text(families: Running) -> None:
    found = message(chat(families, "qwen3", tools=[WEATHER]))
    assert found["content"] + found.get("reasoning_content", "")
    assert "tool_calls" not in found
    many = [function(f"tool_{number}") for number in range(600)]  # as of several MCP servers
    assert prompt_length(families, f"{CHAT}/input_tokens", model="qwen3", messages=ASK, tools=many)


def test_earlier_thoughts_are_in_the_prompt(families: Running) -> None:
    called = use("weather", {"city": "Rome"})

    def blocks(*found: Any, **result: Any) -> int:
        turns = [*ASK, assistant([*found]), user([tool_result(**result)])]
        return message_tokens(families, "qwen3", turns)

    assert blocks(called, is_error=True) > blocks(called, is_error=False)
    assert blocks({"type": "thinking", "thinking": "I should look first."}, called) > blocks(called)

    items = partial(item_tokens, families, "qwen3")
    call = {"type": "function_call", "call_id": "1", "name": "weather", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "1", "output": "5"}
    thought: Any = {"type": "reasoning", "summary": [], "content": []}
    parts = [{"type": "reasoning_text", "text": "I should look first."}]
    assert items(thought | {"content": parts}, call, output) > items(call, output)
    assert items(thought | {"summary": parts}, call, output) > items(call, output)
    asked = {"input": "Hi", "max_output_tokens": 4, "include": ["reasoning.encrypted_content"]}
    (told,) = families.post("/v1/responses", {"model": "qwen3.5", **asked}).json["output"]
    assert items(told | {"content": None}, call, output) == items(told, call, output)
    assert items(thought, call, output, thought) == items(call, output)

    def turns(**more: Any) -> int:
        turn = assistant("", tool_calls=[{"function": {"name": "now", "arguments": {}}}], **more)
        messages = [*ASK, turn, {"role": "tool", "tool_name": "now", "content": "9"}]
        few = {"num_predict": 3}
        return prompt_length(families, "/api/chat", model="qwen3", messages=messages, options=few)

    assert turns(thinking="I have to look at the clock first.") > turns()


@pytest.mark.parametrize("thought", ["First.", [{"type": "text", "text": "First."}]])
def test_thought_parts_equal_reasoning_content(families: Running, thought: Any) -> None:
    parts = assistant([{"type": "thinking", "thinking": thought}, {"type": "text", "text": "So."}])
    member = assistant("So.", reasoning_content="First.")
    one, other = (render(families, "qwen3", [*ASK, said, *ASK]) for said in (parts, member))
    assert one == other


def test_answers_may_quote_marks_of_thoughts(families: Running) -> None:
    said = "It ends with `</think>`, and `<think>` begins it."
    for text in (said, f"<think>\nHm\n</think>\n\n{said}"):
        assert said in render(families, "qwen3", [*ASK, assistant(text), *ASK])


@pytest.mark.parametrize(
    ("content", "other"),
    [
        (["A", "B"], [{"type": "text", "text": one} for one in "AB"]),
        ({"a": 1}, '{"a": 1}'),
        ([{"a": "é"}, 1], '[{"a": "é"}, 1]'),
        ([], ""),
    ],
    ids=str,
)
def test_forms_of_contents(families: Running, content: Any, other: Any) -> None:
    turns = [*ASK, assistant(None, tool_calls=[tool_call("now")])]
    one, same = (
        render(families, "qwen3", [*turns, {"role": "tool", "tool_call_id": "c", "content": said}])
        for said in (content, other)
    )
    assert one == same
    refused = isinstance(other, str) and "a" in other
    assert chat(families, "qwen3", messages=[user(content)]).status == (400 if refused else 200)
    lost = user([{"type": "input_text", "input_text": "A"}])
    assert "has no text" in chat(families, "qwen3", messages=[lost]).error()


def test_images_of_tools_are_refused_in_words(families: Running) -> None:
    picture = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
    shown = [{"type": "image", "source": picture}]
    turns = [*ASK, assistant([use("now", {})]), user([tool_result(content=shown)])]
    body = {"model": "qwen3", "max_tokens": 2, "messages": turns}
    assert "reads text only" in families.post("/v1/messages", body).error()
    part = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}
    reply = families.post("/v1/responses", {"model": "qwen3", "input": [user([part])]})
    assert "reads text only" in reply.error()
    assert reply.json["error"]["param"] != "messages"


@pytest.mark.parametrize(
    ("model", "said", "shown"),
    [
        ("ministral3", None, "[THINK]Hm.[/THINK][TOOL_CALLS]now"),
        ("gpt-oss", "", "<|channel|>analysis<|message|>Hm.<|end|>"),
        ("gpt-oss", "So I look.", "<|channel|>analysis<|message|>Hm.\n\nSo I look.<|end|>"),
    ],
)
def test_thoughts_before_a_call(
    families: Running, model: str, said: str | None, shown: str
) -> None:
    turn = assistant(said, reasoning_content="Hm.", tool_calls=[tool_call("now")])
    messages = [*ASK, turn, {"role": "tool", "tool_call_id": "c", "content": "9"}]
    assert shown in render(families, model, messages)


HOSTED: Any = [{"type": "web_search_20250305", "name": "web_search"}]


@pytest.mark.parametrize(
    ("path", "choice", "tool"),
    [
        ("/v1/responses", "required", {"type": "function", "name": "now"}),
        ("/v1/messages", {"type": "any"}, {"name": "now", "input_schema": {"type": "object"}}),
        (CHAT, "required", function("now")),
    ],
)
def test_hosted_tools_are_ignored(families: Running, path: str, choice: Any, tool: Any) -> None:
    body = {"model": "llama2", "input": ASK, "messages": ASK, "tool_choice": choice}
    body |= {"max_tokens": 60, "max_output_tokens": 60}
    found = families.post(path, {**body, "tools": [*HOSTED, tool]}).json
    if path == CHAT:
        assert found["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "now"
    else:
        (call,) = found.get("output") or found["content"]
        assert call["name"] == "now"
    assert "web_search_20250305" in families.post(path, {**body, "tools": HOSTED}).error()


@pytest.mark.parametrize("asked", [{}, {"tools": [{"type": "function", "name": "now"}]}])
def test_truncated_response_is_incomplete(families: Running, asked: Any) -> None:
    choice = {"tool_choice": "required"} if asked else {}
    # A model without training says no end, but that of a call.
    for most, status in ((12, "incomplete"), (60, "completed"))[: 1 + bool(asked)]:
        body = {"model": "llama2", "input": ASK, "max_output_tokens": most, **asked, **choice}
        (item,) = families.post("/v1/responses", body).json["output"]
        (*_, last) = families.post("/v1/responses", {**body, "stream": True}).events
        (same,) = last["response"]["output"]
        assert item["status"] == same["status"] == last["response"]["status"] == status


@pytest.mark.parametrize(("model", "thinks"), [("qwen3.5", True), ("llama2", False)])
def test_reasoning_tokens_are_counted(families: Running, model: str, thinks: bool) -> None:
    pieces = families.post("/tokenize", {"model": model, "content": "😀", "with_pieces": True}).json
    *_, part = (one["id"] for one in pieces["tokens"] if isinstance(one["piece"], list))
    broken = chat(families, model, logit_bias={str(part): 100}).json["usage"]
    assert broken["completion_tokens_details"]["reasoning_tokens"] <= broken["completion_tokens"]
    told = chat(families, model).json["usage"]
    body = {"model": model, "input": ASK, "max_output_tokens": 24}
    same = families.post("/v1/responses", body).json["usage"]["output_tokens_details"]
    number = told["completion_tokens_details"]["reasoning_tokens"]
    assert number == same["reasoning_tokens"]
    assert (0 < number <= told["completion_tokens"]) == thinks


def test_earlier_calls_without_ids_and_tool_references(families: Running) -> None:
    call = {"function": {"name": "now", "arguments": {}}}  # ollama's
    text = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    turns = [*ASK, assistant(text, tool_calls=[call])]
    turns += [{"role": "tool", "tool_call_id": "a", "content": "Noon."}]
    prompt_length(families, "/api/chat", model="llama2", messages=turns, **FEW)
    found = {"type": "tool_reference", "tool_name": "now"}
    turns = [*ASK, assistant([use("find", {})]), user([tool_result(content=[found])])]
    prompt_length(families, "/v1/messages", model="llama2", messages=turns, **FEW)


def test_thought_marks_that_are_control_tokens(families: Running) -> None:
    body: Any = {"model": "ministral3", "content": "[/THINK]"}
    (closes,) = families.post("/tokenize", body).json["tokens"]
    asked: Any = {"regex": "[0-9]+", "logit_bias": {str(closes): 100}}
    begun = [*ASK, assistant("", reasoning_content="Hm.")]
    found = message(chat(families, "ministral3", messages=begun, **asked))
    assert found["content"].strip().isdigit()
    turns = [*ASK, assistant("A", reasoning_content="Hm.")]
    assert render(families, "ministral3", turns).endswith("[THINK]\nHm.\n[/THINK]\n\nA")
    assert "[/INST][THINK]Hm.[/THINK]A" in render(families, "ministral3", [*turns, *ASK])


FINAL = "<|start|>assistant<|channel|>final<|message|>"
BEGUN = {"gpt-oss": f"<|channel|>analysis<|message|>Hm<|end|>{FINAL}A"}
BEGUN |= {"solar": "<|think|>Hm<|end|><|begin|>assistant<|content|>A"}
MUSE = " to=self<|message|>Hm<|eom|><|start|>assistant to="
BEGUN |= {"muse-glimmer": f"{MUSE}user<|message|>A"}


@pytest.mark.parametrize("model", BEGUN)
def test_prefill_gets_channel_marks(families: Running, model: str) -> None:
    thought = {"reasoning_content": "Hm"}
    assert render(families, model, [*ASK, assistant("A", **thought)]).endswith(BEGUN[model])
    found = message(chat(families, model, messages=[*ASK, assistant("", **thought)]))
    assert found["reasoning_content"]
    assert not found["content"]


SOLAR = "<|think|>Look.<|end|><|begin|>assistant"
CALL = "<|tool_calls|><|tool_call:begin|>a1b2<|tool_call:name|>weather<|tool_call:args|>"

OF_K3 = (
    '<|close|>response<|sep|><|open|>tools<|sep|><|open|>call tool="weather" index="1"<|sep|>'
    '<|open|>argument key="city" type="string"<|sep|>Paris<|close|>argument<|sep|>'
    '<|open|>argument key="days" type="number"<|sep|>3<|close|>argument<|sep|>'
    "<|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|><|end_of_msg|>"
)
OF_HY3 = (
    "<tool_calls>\n<tool_call>weather<tool_sep>\n<arg_key>city</arg_key>\n"
    "<arg_value>Paris</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n"
    "</tool_call>\n</tool_calls>"
).replace(">", ":6124c78e>")


@pytest.mark.parametrize(
    ("model", "said", "thought"),
    [
        ("solar", f"{SOLAR}<|content|>Yes", "Look."),
        ("solar", f"{SOLAR}{CALL}{PARIS}<|tool_call:end|>", "Look."),
        ("kimi-k3", "Yes<|close|>response<|sep|><|close|>message<|sep|><|end_of_msg|>", None),
        ("kimi-k3", OF_K3, None),
        ("hy3", OF_HY3, None),
        ("muse-glimmer", f"{MUSE}user<|message|>Yes", "Hm"),
        ("muse-glimmer", f'{MUSE}f<|message|>{{"name": "weather", "arguments": {PARIS}}}', "Hm"),
    ],
)
def test_formats_of_tokens(families: Running, model: str, said: str, thought: str | None) -> None:
    tokens = families.post("/tokenize", {"model": model, "content": said}).json["tokens"]
    asked: Any = {"grammar": "start: " + " ".join(f"<[{token}]>" for token in tokens)}
    asked |= {"tools": [WEATHER], "max_tokens": len(tokens), "think": bool(thought)}
    found = message(chat(families, model, **asked))
    assert found.get("reasoning_content") == thought
    calls = [call["function"] for call in found.get("tool_calls", ())]
    assert (found["content"] or calls) in ("Yes", [{"name": "weather", "arguments": PARIS}])


@pytest.mark.parametrize("model", ["llama2", "qwen3"])
def test_tools_with_a_schema_give_a_call_or_matching_json(families: Running, model: str) -> None:
    kinds = set()
    for seed in range(6):
        options = {"temperature": 1.0, "seed": seed, "num_predict": 80}
        body = {"model": model, "messages": ASK, "tools": NOW, "format": OPEN, "stream": False}
        found = families.post("/api/chat", {**body, "options": options}).json["message"]
        if "tool_calls" in found:
            called = {"index": 0, "name": "now", "arguments": {}}
            assert found["tool_calls"][0]["function"] == called
            kinds.add("call")
        else:
            assert json.loads(found["content"]) == {"a": "x"}
            kinds.add("answer")
    assert kinds == {"call", "answer"}


@pytest.mark.parametrize("said", ["", "Let me look."])
def test_response_items_of_one_turn(families: Running, said: str) -> None:
    calls: Any = [
        {"type": "function_call", "call_id": id, "name": "f", "arguments": "{}"} for id in "ab"
    ]
    outputs: Any = [{"type": "function_call_output", "call_id": id, "output": "5"} for id in "ab"]
    thoughts: Any = [
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": one}]}
        for one in ("Hm.", "Why not?")
    ]
    words = [assistant(said)] if said else []
    one = assistant(
        said, tool_calls=[tool_call("f", id=id) for id in "ab"], reasoning_content="Hm.\nWhy not?"
    )
    turns = [*ASK, one, *({"role": "tool", "tool_call_id": id, "content": "5"} for id in "ab")]
    few = {"model": "qwen3", "max_tokens": 1, "max_output_tokens": 1}
    expected = prompt_length(families, CHAT, **few, messages=turns)
    for items in ([*thoughts, *words, *calls], [*thoughts, *calls, *words]):
        asked = [*ASK, *items, *outputs]
        assert prompt_length(families, "/v1/responses", **few, input=asked) == expected


@pytest.mark.parametrize(
    "choice",
    [
        {"type": "auto"},
        {"type": "function", "name": "g"},
        {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [function("g")]}},
        {"type": "allowed_tools", "mode": "required", "tools": [{"name": "g"}]},
    ],
    ids=str,
)
def test_tool_choice_formats(families: Running, choice: Any) -> None:
    tools = [function(name) for name in "fg"]
    reply = chat(families, "llama2", tools=tools, tool_choice=choice, max_tokens=60)
    assert reply.status == 200
    calls = message(reply).get("tool_calls", [])
    if choice["type"] != "auto":
        assert [call["function"]["name"] for call in calls] == ["g"]


@pytest.mark.parametrize(
    "name",
    [
        *("guided_json", "guided_choice", "structured_outputs", "ebnf", "min_tokens"),
        *("stop_token_ids", "allowed_token_ids", "bad_words", "include_stop_str_in_output"),
        *("chat_template", "truncate_prompt_tokens", "documents", "prompt_logprobs", "stop_regex"),
        *("best_of", "use_beam_search", "top_n_sigma", "lora", "modalities", "audio", "min_keep"),
        *("image_data", "banned_strings", "stopping_strings", "grammar_string", "min_length"),
        *("grammar_lazy", "ban_eos_token", "rep_pen", "response_prefix", "num_beams", "echo"),
        *("no_repeat_ngram_size", "guidance_scale", "encoder_repetition_penalty", "regex_pattern"),
    ],
)
def test_unsupported_vendor_fields_are_refused(families: Running, name: str) -> None:
    assert name in chat(families, "qwen3", **{name: ["yes", "no"]}).error()
    off = {"best_of": 1, "use_beam_search": False, "top_n_sigma": -1.0, "modalities": ["text"]}
    off |= {"lora": [], "mirostat": 0, "tfs": 1, "adaptive_target": -0.01}
    assert chat(families, "qwen3", max_tokens=1, **off).status == 200
    assert chat(families, "qwen3", **{name: None if name == "guided_json" else 0}).status == 200


def test_other_names_of_fields(families: Running) -> None:
    """Frontends of several servers send some twice; vLLM has its own penalty."""
    twice = {"stop": ["x"], "stopping_strings": ["x"], "max_tokens": 2, "max_new_tokens": 2}
    assert chat(families, "qwen3", **twice, num_beams=1, guidance_scale=1).status == 200
    body = {"model": "qwen3", "prompt": "Once upon a time", "max_tokens": 40}
    ours, vllm, plain = (
        families.post("/v1/completions", {**body, **more}).json["choices"][0]["text"]
        for more in ({"repeat_penalty": 3.0, "repeat_last_n": -1}, {"repetition_penalty": 3.0}, {})
    )
    assert vllm == ours != plain


def test_whole_floats_are_integers(families: Running) -> None:
    assert chat(families, "qwen3", max_tokens=2.0, top_k=40.0, seed=1.0).status == 200
    assert chat(families, "qwen3", max_tokens=2.5).status == 400
    options = {"num_predict": 2.0, "top_k": 40.0}
    body = {"model": "qwen3", "messages": ASK, "options": options, "stream": False}
    assert families.post("/api/chat", body).json["eval_count"] == 2
    endless = {**body, "options": {"num_predict": 0, "stop": ["."]}}
    assert families.post("/api/chat", endless).json["eval_count"] > 2


@pytest.mark.parametrize("model", ["qwen3", "llama2"])
def test_echo_without_new_tokens(families: Running, model: str) -> None:
    body = {"model": model, "prompt": "Once upon", "echo": True, "logprobs": 1, "max_tokens": 0}
    told = families.post("/v1/completions", body).json
    assert (told["choices"][0]["text"], told["usage"]["completion_tokens"]) == ("Once upon", 0)
    assert "".join(told["choices"][0]["logprobs"]["tokens"]).lstrip() == "Once upon"
    assert told["choices"][0]["logprobs"]["text_offset"] == [0, 4]
    streamed = families.post("/v1/completions", {**body, "stream": True}).events
    assert "".join(one["choices"][0]["text"] for one in streamed) == "Once upon"
    assert families.post("/v1/completions", {**body, "echo": False}).status == 400
    empty = families.post("/v1/completions", {**body, "prompt": ""}).json["choices"][0]
    assert (empty["text"], empty["logprobs"]["text_offset"]) == ("", [])


def test_thinking_block_ends_with_a_signature(families: Running) -> None:
    body = {"model": "qwen3.5", "messages": ASK, "max_tokens": 4, "stream": True}
    told = families.post("/v1/messages", body).events
    kinds = [one.get("delta", {}).get("type", one["type"]) for one in told]
    assert kinds.count("content_block_start") == 1
    assert kinds[kinds.index("content_block_stop") - 1] == "signature_delta"
    body = {**body, "temperature": 0, "stream": False}
    shown, omitted = (
        families.post("/v1/messages", {**body, "thinking": {"display": how}}).json["content"][0]
        for how in ("summarized", "omitted")
    )
    assert shown["thinking"]
    assert omitted["thinking"] == ""
    turns = ([*ASK, assistant([one, use("now", {})])] for one in (shown, omitted))
    assert len({message_tokens(families, "qwen3.5", one) for one in turns}) == 1


def test_separate_tool_template(tmp_path: Path, draft_path: Path) -> None:
    plain, tools = "{% for m in messages %}{{ m.content }}{% endfor %}", "T{{ tools|length }}"
    model = with_template(tmp_path / "two.gguf", draft_path, template=plain, tool_template=tools)
    with serving(tmp_path, "-m", str(model), "-d", "none", "-c", "256", "-t", "1") as server:
        assert render(server, "two", ASK) == ASK[0]["content"]
        assert render(server, "two", ASK, tools=NOW) == "T1"


FORCED: Any = {"tools": NOW, "tool_choice": "required"}


@pytest.mark.parametrize("model", ["llama2", "qwen3"])
@pytest.mark.parametrize("several", [False, True])
def test_truncated_call_is_not_text(families: Running, model: str, several: bool) -> None:
    whole = chat(families, model, **FORCED, parallel_tool_calls=several, max_tokens=40)
    for most in range(1, 12, 2):
        asked = {**FORCED, "parallel_tool_calls": several, "max_tokens": most}
        found = message(chat(families, model, **asked))
        assert not found["content"]
        streamed = chat(families, model, stream=True, **asked)
        assert not any(one.get("content") for one in deltas(streamed))
        said = "".join(one["arguments"] for one in call_deltas(streamed))
        assert said == "".join(one["function"]["arguments"] for one in found.get("tool_calls", ()))
    assert message(whole)["tool_calls"]


def test_stop_string_leaves_no_broken_call(families: Running) -> None:
    text = f'<tool_call>\n{{"name": "weather", "arguments": {PARIS}}}\n</tool_call>'
    asked = forced(text, stop=["days"], stop_sequences=["days"])
    assert chat(families, "qwen3", **asked).json["choices"][0]["finish_reason"] == "stop"
    told = families.post("/v1/messages", {"model": "qwen3", "messages": ASK, **asked}).json
    assert told["content"][0]["input"] == {"city": "Paris"}


def test_usage_is_null_until_the_last_event(families: Running) -> None:
    more = {"stream": True, "stream_options": {"include_usage": True}, "max_tokens": 3}
    asked: Any = {CHAT: {"messages": ASK}, "/v1/completions": {"prompt": "A fox"}}
    for path, prompt in asked.items():
        *events, last = families.post(path, {"model": "chatml", **prompt, **more}).events
        assert [one["usage"] for one in events] == [None] * len(events)
        assert last["usage"]["completion_tokens"] == 3
        options = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
        events = families.post(path, {"model": "chatml", **prompt, **more, **options}).events
        counts = [one["usage"]["completion_tokens"] for one in events]
        assert counts == sorted(counts)
        *some, last = ({*one["usage"]["completion_tokens_details"]} for one in events)
        assert some == [last - {"reasoning_tokens"}] * len(some)


def test_token_ids_as_from_vllm(families: Running) -> None:
    for path, asked in ((CHAT, {"messages": ASK}), ("/v1/completions", {"prompt": "A fox"})):
        body = {"model": "chatml", **asked, "max_tokens": 12, "temperature": 0}
        assert "token_ids" not in families.post(path, body).json["choices"][0]
        body["return_token_ids"] = True
        whole = families.post(path, body).json
        (choice,) = whole["choices"]
        prompt, said = (whole | choice)["prompt_token_ids"], choice["token_ids"]
        assert prompt == families.post("/tokenize", {"model": "chatml", **asked}).json["tokens"]
        told = families.post("/detokenize", {"model": "chatml", "tokens": said}).json["content"]
        assert told == (choice.get("text") or choice["message"]["content"])
        first, *events = families.post(path, {**body, "stream": True}).events
        assert (first | first["choices"][0])["prompt_token_ids"] == prompt
        assert [one for event in events for one in event["choices"][0]["token_ids"]] == said


def test_deprecated_functions_and_untyped_tools(families: Running) -> None:
    reply = chat(families, "llama2", functions=[{"name": "now"}])
    assert (reply.status, reply.json["error"]["param"]) == (400, "functions")
    call = {"name": "now", "arguments": '{"at": "Rome"}'}
    former = [*ASK, assistant(None, function_call=call)]
    former += [{"role": "function", "name": "now", "content": "Noon."}]
    assert "Rome" in render(families, "llama2", former)
    untyped: Any = {"tools": [{"function": {"name": "now"}}], "tool_choice": "required"}
    assert message(chat(families, "llama2", **untyped))["tool_calls"]


@pytest.mark.parametrize(
    ("field", "value", "name"),
    [
        ("temperature", -1, "temperature"),
        ("temperature", "hot", "temperature"),
        *(("max_tokens", 0, "max_tokens"), ("max_completion_tokens", 0, "max_completion_tokens")),
        ("n", 99, "n"),
        ("logit_bias", {"fox": 1}, "logit_bias"),
        ("top_logprobs", 3, "top_logprobs"),
        ("tool_choice", "required", "tool_choice"),
        ("response_format", {"type": "json_schema", "json_schema": {}}, "response_format"),
        ("messages", [], "messages"),
        ("stop", [1], "stop.0"),
        ("stop", 1, "stop"),
        ("logit_bias", "x", "logit_bias"),
        ("logit_bias", {"15": None}, "logit_bias.15"),
        ("logit_bias", {"9999999": 1}, "logit_bias"),
        ("messages", [user([{"text": "x"}])], "messages.0.content.0.type"),
        ("messages", [user(1)], "messages.0.content"),
        ("tools", [{"type": "function"}], "tools.0.function"),
    ],
)
def test_errors_name_the_clients_field(
    families: Running, field: str, value: Any, name: str
) -> None:
    reply = chat(families, "chatml", **{"max_tokens": None, field: value})
    error = reply.json["error"]
    assert (reply.status, error["type"], error["code"]) == (400, "invalid_request_error", None)
    assert (error["param"], error["message"][: len(name)]) == (name, name)
    assert "Engine" not in error["message"]


def test_wrong_methods_and_encodings(families: Running) -> None:
    reply = families.request("PUT", CHAT, {})
    assert reply.error(405) == "PUT is not supported. Use POST."
    assert reply.headers["allow"] == "POST"
    raw = json.dumps({"model": "qwen3", "messages": ASK, "max_tokens": 1})
    zipped = {"raw": gzip.compress(raw.encode()), "headers": {"Content-Encoding": "gzip"}}
    assert "compressed" in families.post(CHAT, None, **zipped).error(415)
    assert families.post(CHAT, None, raw=raw.encode("utf-8-sig")).status == 200


def test_ollama_context_is_continued(families: Running) -> None:
    options = {"num_predict": 5, "temperature": 0}
    body: Any = {"model": "chatml", "stream": False, "options": options}
    first = families.post("/api/generate", {**body, "prompt": "A fox."}).json
    again = families.post("/api/generate", {**body, "prompt": "Go on."}).json
    both = {**body, "prompt": "Go on.", "context": first["context"]}
    found = families.post("/api/generate", both).json
    added = found["prompt_eval_count"] - len(first["context"])
    assert added == again["prompt_eval_count"] - 1  # BOS
    assert found["context"][: len(first["context"])] == first["context"]


def test_ollama_logprobs(families: Running) -> None:
    options = {"num_predict": 3, "temperature": 0}
    body: Any = {"model": "chatml", "messages": ASK, "options": options, "logprobs": True}
    whole = families.post("/api/chat", {**body, "stream": False, "top_logprobs": 2}).json
    assert len(whole["logprobs"]) == whole["eval_count"]
    assert [len(one["top_logprobs"]) for one in whole["logprobs"]] == [2] * 3
    told = [
        one for line in families.post("/api/chat", body).events for one in line.get("logprobs", [])
    ]
    assert [one["token"] for one in told] == [one["token"] for one in whole["logprobs"]]


def test_ollama_capabilities(families: Running) -> None:
    able = {"qwen3": {"tools", "thinking"}, "gpt-oss": {"thinking"}, "llama2": set[str]()}
    for model, some in able.items():
        can = {*families.post("/api/show", {"model": model}).json["capabilities"]}
        assert some <= can
        assert some or not {"tools", "thinking"} & can


FOX: Any = [{"type": "text", "text": "FOX"}]


@pytest.mark.parametrize(
    "block",
    [
        {"type": "document", "source": {"type": "text", "data": "FOX"}},
        {"type": "document", "source": {"type": "content", "content": FOX}},
        {"type": "document", "source": {"type": "text", "data": "x"}, "title": "FOX"},
        {"type": "document", "source": {"type": "text", "data": "x"}, "context": "FOX"},
        {"type": "search_result", "source": "x", "title": "", "content": FOX},
    ],
    ids=str,
)
def test_text_documents_are_read(families: Running, block: Any) -> None:
    def tokens(text: str) -> int:
        filled = json.loads(json.dumps(block).replace("FOX", text))
        return message_tokens(families, "chatml", [user([filled])])

    assert tokens("A fox ran over the hill.") >= tokens("") + 5


@pytest.mark.parametrize(
    ("text", "status"), [("A fox ran. \N{FOX FACE}", 200), ("%PDF\0", 400), ("\udcff", 400)]
)
def test_text_files_are_read(families: Running, text: str, status: int) -> None:
    data = base64.b64encode(text.encode("utf-8", "surrogateescape")).decode()
    file = {"filename": "fox.md", "file_data": f"data:text/markdown;base64,{data}"}
    for body in (
        {"messages": [user([{"type": "file", "file": file}])]},
        {"input": [user([{"type": "input_file", **file}])]},
    ):
        path = f"{CHAT}/input_tokens" if "messages" in body else "/v1/responses/input_tokens"
        reply = families.post(path, {"model": "llama2", **body})
        assert reply.status == status
        if status == 200:
            same = families.post(path, {"model": "llama2", "input": text, "messages": [user(text)]})
            assert reply.json == same.json
        else:
            assert "reads text only" in reply.error()


def test_coding_agent_items(families: Running) -> None:
    """Codex sends hosted tools, their traces, and calls of its own tools."""
    items = partial(item_tokens, families, "llama2")
    hosted = [
        {"type": "additional_tools", "tools": [{"type": "computer", "name": "exec"}]},
        {"type": "web_search_call", "status": "completed", "action": {"type": "search"}},
        {"type": "mcp_call", "name": "f", "arguments": "{}", "output": "x", "server_label": "s"},
        {"type": "compaction", "encrypted_content": "x"},
        *({"type": f"tool_search_{what}", "tools": []} for what in ("call", "output")),
        {"type": "program", "call_id": "c", "code": "x", "fingerprint": "f"},
    ]
    again = user("Go on.")
    assert items(*hosted, again) == items(again)
    parts = [{"type": "encrypted_content", "encrypted_content": "Go on."}]
    assert items({"type": "agent_message", "author": "/root", "content": parts}) == items(again)
    call = {"type": "custom_tool_call", "call_id": "c", "name": "exec", "input": "ls /tmp"}
    output = {"type": "custom_tool_call_output", "call_id": "c", "output": "notes.txt"}
    shell = {"type": "exec_call", "call_id": "c", "action": {"input": "ls /tmp"}}
    function = {"type": "function_call", "call_id": "c", "name": "exec"}
    function["arguments"] = '{"input": "ls /tmp"}'
    parsed = {**function, "arguments": {"input": "ls /tmp"}}
    assert items(parsed, again) == items(function, again)
    result = {**output, "type": "function_call_output"}
    assert items(call, output, again) == items(function, result, again) > items(again)
    assert items(shell, output, again) == items(function, result, again)
    for told in ([{"stdout": "a.txt"}], {"stdout": "a.txt"}):
        assert items(shell, {**output, "output": told}, again) == items(
            function, {**result, "output": json.dumps(told)}, again
        )
    lost = {"input": [*ASK, {"type": "item_reference"}]}, {"input": "", "previous_response_id": "r"}
    assert all("store: false" in families.post("/v1/responses", one).error() for one in lost)


PATTERN = {"type": "grammar", "syntax": "regex", "definition": r'^SELECT [a-z]{3};\n"x"$'}
LARK = {"type": "grammar", "syntax": "lark", "definition": 'start: "a" N -> sum\nN: /[0-9]{2}/'}


def custom(form: Any) -> tuple[Any, Any]:
    """A custom tool in the formats of Responses and of chats."""
    rule = {name: form[name] for name in form.keys() & {"syntax", "definition"}}
    nested = {"format": {"type": form["type"], **({"grammar": rule} if rule else {})}}
    flat = {"type": "custom", "name": "exec", "format": form}
    return flat, {"type": "custom", "custom": {"name": "exec", **nested}}


@pytest.mark.parametrize("model", ["llama2", "qwen3", "gpt-oss"])
@pytest.mark.parametrize(
    ("form", "pattern"),
    [({"type": "text"}, r"(?s).*"), (PATTERN, r'SELECT [a-z]{3};\n"x"'), (LARK, r"a\d\d")],
    ids=["text", "regex", "lark"],
)
def test_custom_tools_have_a_text_as_input(
    families: Running, model: str, form: Any, pattern: str
) -> None:
    flat, nested = custom(form)
    asked = {"model": model, "input": ASK, "tools": [flat], "tool_choice": "required"}
    (item,) = families.post("/v1/responses", asked).json["output"]
    assert (item["type"], item["name"], item["status"]) == ("custom_tool_call", "exec", "completed")
    assert re.fullmatch(pattern, item["input"])
    events = families.post("/v1/responses", {**asked, "stream": True}).events
    (same,) = events[-1]["response"]["output"]
    texts = [one["delta"] for one in events if one["type"].endswith("_input.delta")]
    assert "".join(texts) == same["input"] == item["input"]
    (done,) = [one for one in events if one["type"] == "response.custom_tool_call_input.done"]
    assert done["input"] == item["input"]
    choice = {"type": "custom", "custom": {"name": "exec"}}
    offer: Any = {"tools": [*NOW, nested], "tool_choice": choice, "max_tokens": 80}
    reply = chat(families, model, **offer)
    (call,) = message(reply)["tool_calls"]
    assert (call["type"], call["custom"]) == ("custom", {"name": "exec", "input": item["input"]})
    assert reply.json["choices"][0]["finish_reason"] == "tool_calls"
    streamed = [
        one for one in deltas(chat(families, model, stream=True, **offer)) if "tool_calls" in one
    ]
    parts = [one["tool_calls"][0]["custom"] for one in streamed]
    assert parts[0] == {"name": "exec", "input": ""}
    assert "".join(part["input"] for part in parts) == item["input"]
    turn = [*ASK, assistant(None, tool_calls=[call]), {"role": "tool", "content": "5"}]
    function = tool_call("exec", {"input": item["input"]}, id=call["id"])
    other = [*ASK, assistant(None, tool_calls=[function]), turn[-1]]
    assert render(families, model, turn) == render(families, model, other)


def test_wrong_formats_of_custom_tools(families: Running) -> None:
    wrong = (("ebnf", "x"), ("lark", " "), ("lark", "start: other"), ("regex", "("))
    forms: Any = [{"type": "grammar", "syntax": kind, "definition": rule} for kind, rule in wrong]
    for form in (*forms, {"type": "json"}):
        for tool in custom(form):
            for model in ("llama2", "qwen3"):
                assert chat(families, model, tools=[tool]).status == 400


def test_custom_tool_beside_functions(families: Running) -> None:
    tools = [custom(LARK)[0], {"type": "function", "name": "now"}]
    kinds = set()
    for seed in range(8):
        body = {"model": "llama2", "input": ASK, "tools": tools, "tool_choice": "required"}
        body |= {"temperature": 3.0, "seed": seed, "max_output_tokens": 40}
        (item,) = families.post("/v1/responses", body).json["output"]
        text = item.get("input") or item.get("arguments")
        assert re.fullmatch(r"a\d\d|\{ ?\}", text)
        kinds.add(item["type"])
    assert kinds == {"function_call", "custom_tool_call"}


@pytest.mark.parametrize(
    ("model", "text"),
    [
        ("qwen3", '<tool_call>{"name": "weather", "arguments": {"city": "Paris'),
        ("qwen3", "<tool_call>\n<function=weather>\n<parameter=city>\nParis"),
        ("qwen3", "<tool_call>weather<arg_key>city</arg_key><arg_value>Paris"),
        ("mistral-v3", '[TOOL_CALLS]weather[ARGS]{"city": "Paris'),
    ],
)
def test_calls_that_end_within_a_value_are_closed(families: Running, model: str, text: str) -> None:
    (call,) = message(chat(families, model, **forced(text)))["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"city": "Paris"}
    parts = call_deltas(chat(families, model, stream=True, **forced(text)))
    assert "".join(part["arguments"] for part in parts) == call["function"]["arguments"]
    stopped = chat(families, model, **forced(text, stop=["ris"])).json["choices"][0]
    assert stopped["finish_reason"] == "stop"
    with pytest.raises(ValueError, match="Unterminated"):
        json.loads(stopped["message"]["tool_calls"][0]["function"]["arguments"])
    options = {"grammar": forced(text)["grammar"], "stop": ["ris"]}
    body = {"messages": ASK, "tools": [WEATHER], "options": options, "stream": False}
    assert "tool_calls" not in families.post("/api/chat", {"model": model, **body}).json["message"]


def test_tools_of_a_namespace(families: Running) -> None:
    """Codex groups the tools of an MCP server, and may send them as an item."""
    clock = [{"type": "function", "name": "now"}]
    space = {"type": "namespace", "name": "clock", "description": "Time.", "tools": clock}
    item = {"type": "additional_tools", "role": "developer", "tools": [space]}
    for body in ({"input": ASK, "tools": [space]}, {"input": [item, *ASK]}):
        asked = {"model": "llama2", "tool_choice": "required", **body}
        (call,) = families.post("/v1/responses", asked).json["output"]
        assert (call["type"], call["namespace"], call["name"]) == ("function_call", "clock", "now")
    named = item_tokens(families, "llama2", call, user("Go on."))
    assert named > item_tokens(families, "llama2", {**call, "namespace": None}, user("Go on."))
    # Or it searches for them when they are needed, and may find them again.
    query = {"type": "object", "properties": {"query": {"enum": ["time"]}}, "required": ["query"]}
    search = {"type": "tool_search", "execution": "client", "parameters": query}
    asked = {"model": "llama2", "input": ASK, "tools": [search], "tool_choice": "required"}
    (call,) = families.post("/v1/responses", asked).json["output"]
    assert (call["type"], call["arguments"]) == ("tool_search_call", {"query": "time"})
    found = {**call, "type": "tool_search_output", "tools": [space]}
    asked |= {"input": [*ASK, call, found, call, found]}
    asked["tool_choice"] = {"type": "function", "name": "clock__now"}
    assert families.post("/v1/responses", asked).json["output"][0]["namespace"] == "clock"


def test_hosted_tool_blocks(families: Running) -> None:
    def blocks(*found: Any) -> int:
        messages = [*ASK, assistant([{"type": "text", "text": "So."}, *found]), *ASK]
        return message_tokens(families, "llama2", messages)

    search = {"type": "server_tool_use", "id": "1", "name": "web_search", "input": {"query": "a"}}
    found = {"type": "web_search_result", "title": "T", "url": "u", "encrypted_content": "x"}
    for content in ([found], {"type": "web_search_tool_result_error", "error_code": "x"}):
        result = {"type": "web_search_tool_result", "tool_use_id": "1", "content": content}
        assert blocks(search, result) == blocks()
    summary = {"type": "compaction", "content": "Foxes."}
    assert blocks(summary) == blocks({"type": "text", "text": "Foxes."})
    assert blocks({"type": "fallback"}, {"type": "mcp_tool_listing", "tools": []}) == blocks()


def test_conversations_add_and_remove_tools(families: Running) -> None:
    """As Claude Code's, whose tools come later. The model knows those at the end."""

    def length(changes: Any, *tools: Any) -> int:
        messages = [*ASK, {"role": "system", "content": changes}]
        return message_tokens(families, "llama2", messages, tools=tools)

    clock, fox = ({"name": name, "input_schema": {"type": "object"}} for name in ("clock", "fox"))
    named = {"type": "tool_reference", "name": "fox"}
    added, removed = ({"type": f"tool_{what}", "tool": named} for what in ("addition", "removal"))
    both = length([], clock, fox)
    assert length([added], clock, fox) == length([removed, added], clock, fox) == both
    assert length([removed], clock, fox) == length([], clock) < both
    defined = {**added, "tool": {"type": "tool_definition", "definition": fox}}
    assert length([defined], clock) == length([defined], clock, fox) == both
    search = {"type": "tool_search_tool_bm25_20251119", "name": "tool_search_tool_bm25"}
    later, found = {**fox, "defer_loading": True}, [{"type": "tool_reference", "tool_name": "fox"}]
    assert length([], clock, later) == length([], clock)
    assert length([added], clock, later) == length([], clock, later, search) == both
    turn = [tool_result(content=found)]
    assert length(turn, clock, later) == length(turn, clock, fox)


def test_response_log_probabilities(families: Running) -> None:
    wanted = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    body = {"model": "llama2", "input": ASK, "max_output_tokens": 12, "temperature": 0}
    whole = families.post("/v1/responses", {**body, **wanted}).json
    entries = whole["output"][0]["content"][0]["logprobs"]
    assert len(entries) == whole["usage"]["output_tokens"] == 12
    assert all(len(entry["top_logprobs"]) == 2 for entry in entries)
    events = families.post("/v1/responses", {**body, **wanted, "stream": True}).events
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert [entry for delta in deltas for entry in delta["logprobs"]] == entries
    plain = families.post("/v1/responses", body).json
    assert plain["output"][0]["content"][0]["logprobs"] == []
    said = forced('Oh.\n<tool_call>\n{"name": "weather", "arguments": {}}\n</tool_call>\nNo. Yes.')
    asked = {**body, **said, **wanted, "model": "qwen3", "max_output_tokens": 99}
    *_, last = families.post("/v1/responses", asked).json["output"]
    told = "".join(entry["token"] for entry in last["content"][0]["logprobs"])
    assert (told[-8:], "arguments" in told) == ("No. Yes.", False)


def test_llama_cpp_fields_in_chats(families: Running) -> None:
    reply = chat(families, "llama2", n_probs=2, max_tokens=3)
    entries = reply.json["choices"][0]["logprobs"]["content"]
    assert [len(entry["top_logprobs"]) for entry in entries] == [2] * 3
    body = {"model": "llama2", "prompt": "A fox", "n_predict": 2}
    for name in ("n", "n_cmpl"):
        answers = families.post("/completion", {**body, name: 2}).json
        assert [answer["index"] for answer in answers] == [0, 1]


def test_billing_header_is_dropped(families: Running) -> None:
    def prompts(*texts: str) -> int:
        system = [{"type": "text", "text": text} for text in texts]
        return message_tokens(families, "llama2", system=system)

    assert prompts("x-anthropic-billing-header: cc_version=2; cch=1;", "S") == prompts("S")


def test_unicode_line_separators_are_escaped(families: Running) -> None:
    said = "a\x85b\u2028c\u2029d"
    body = {"model": "llama2", "prompt": "A", "grammar": f"root ::= {json.dumps(said)}"}
    told = families.post("/completion", {**body, "stream": True}).body.decode().splitlines()
    assert "".join(json.loads(line[6:])["content"] for line in told if line) == said
