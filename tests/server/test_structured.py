"""Structured answers in every protocol: schemas, regular expressions and tools."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.server.bodies import ASK, CHAT, function
from tests.server.process import Reply, Running

pytestmark = pytest.mark.nightly

LONG = {"type": "object", "properties": {"text": {"type": "string", "maxLength": 2000}}}
HARD = {"type": "object", "properties": {"n": {"not": {"type": "null"}, "pattern": "(?!x)"}}}


def asked(server: Running, protocol: str, schema: Any, **more: Any) -> Reply:
    """The reply to one question in a protocol, whose answer has to match a schema."""
    form = {"type": "json_schema", "schema": schema}
    told = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    options = {"stream": False, "options": {"temperature": 0, "num_predict": 40}}
    bodies: dict[str, tuple[str, dict[str, Any]]] = {
        "openai": (CHAT, {"response_format": told}),
        "responses": ("/v1/responses", {"text": {"format": {**form, "name": "x"}}}),
        "anthropic": ("/v1/messages", {"output_config": {"format": form}}),
        "ollama": ("/api/chat", {**options, "format": schema}),
        "llama.cpp": ("/completion", {"prompt": "A fox.", "json_schema": schema}),
    }
    path, body = bodies[protocol]
    body |= {"messages": ASK, "input": "A fox.", "max_tokens": 40, "max_output_tokens": 40}
    return server.post(path, {"temperature": 0, **body, **more})


def said(protocol: str, reply: Any) -> str:
    text = {
        "openai": lambda: reply["choices"][0]["message"]["content"],
        "responses": lambda: reply["output"][0]["content"][0]["text"],
        "anthropic": lambda: reply["content"][0]["text"],
        "ollama": lambda: reply["message"]["content"],
        "llama.cpp": lambda: reply["content"],
    }[protocol]()
    assert isinstance(text, str)
    return text


PROTOCOLS = ("openai", "responses", "anthropic", "ollama", "llama.cpp")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_answers_are_what_the_schema_means(server: Running, protocol: str) -> None:
    for value in ("C:\\temp", "a\nb", 'a"b', [1, {"$ref": "~1"}]):
        reply = asked(server, protocol, {"enum": [value]})
        assert json.loads(said(protocol, reply.json)) == value
    year = {"pattern": r"^\d{4}$", "type": "string"}
    assert json.loads(said(protocol, asked(server, protocol, year).json)).isdecimal()
    banned = {"ignore_eos": True, "logit_bias": {"0": -1e300}}  # it ends with its schema
    assert json.loads(said(protocol, asked(server, protocol, {"enum": [5]}, **banned).json)) == 5
    named = {"type": "object", "required": ["id"], "additionalProperties": {"enum": [1]}}
    assert '"id"' in said(protocol, asked(server, protocol, named).json)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_cannot_be_enforced_is_refused_by_name(server: Running, protocol: str) -> None:
    for schema, name in (
        (HARD, "'not'"),
        ({"type": "array", "uniqueItems": True}, "'uniqueItems'"),
    ):
        reply = asked(server, protocol, schema)
        assert reply.status == 400
        assert name in reply.body.decode()


@pytest.mark.parametrize("choice", ["none", "auto", "required"])
@pytest.mark.parametrize("schema", [LONG, HARD, {"properties": {"x": {"$ref": "#"}}}])
def test_a_tool_with_a_hard_schema_refuses_nothing(
    server: Running, choice: str, schema: Any
) -> None:
    """All protocols make their tools in the same place."""
    tools = [function("put", parameters=schema)]
    body = {"messages": ASK, "tools": tools, "tool_choice": choice, "max_tokens": 30}
    assert server.post(CHAT, body).status == 200


def test_references_in_a_tool_mean_that_tool(server: Running) -> None:
    values = {"a": 1, "b": "one"}
    refers = {"properties": {"v": {"$ref": "#/$defs/v"}}, "required": ["v"]}
    tools = [
        function(name, parameters={"$defs": {"v": {"const": value}}, **refers})
        for name, value in values.items()
    ]
    for name, value in values.items():
        body = {"messages": ASK, "tools": tools, "tool_choice": function(name), "max_tokens": 60}
        message = server.post(CHAT, body).json["choices"][0]["message"]
        assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == {"v": value}


def test_regular_expressions(server: Running) -> None:
    for path, asks in (
        (CHAT, {"messages": ASK}),
        ("/v1/completions", {"prompt": "A fox"}),
        ("/completion", {"prompt": "A fox"}),
    ):
        body = {**asks, "regex": "(yes|no)/[0-9]{3}", "max_tokens": 20}
        answer = json.dumps(server.post(path, body).json)
        assert "yes/" in answer or "no/" in answer
        assert server.post(path, {**body, "regex": "("}).status == 400


def test_lark(server: Running) -> None:
    body = {"prompt": "A fox", "grammar": 'start: "<" /[a-c]{2}/ ">"', "n_predict": 20}
    answer = server.post("/completion", body).json["content"]
    assert (answer[0], len(answer), answer[-1]) == ("<", 4, ">")


MEANT: Any = {"type": "object", "properties": {"a": {"enum": ["x"]}}, "required": ["a"]}
EMPTY: Any = {"type": "object", "properties": [], "required": {}, "additionalProperties": False}


@pytest.mark.parametrize("protocol", [*PROTOCOLS, "tool"])
def test_schemas_as_other_languages_write_them(server: Running, protocol: str) -> None:
    """PHP has one empty value, Java and .NET write null for what is left out, Gemini capitals."""
    null = {**MEANT, "required": {"1": "a"}, "additionalProperties": None, "$defs": []}
    capitals = {**MEANT, "type": "OBJECT", "properties": {"a": {"enum": {"2": "x"}}, "b": []}}
    for schema in (null, capitals, EMPTY):
        if protocol == "tool":
            body = {"tools": [function("f", parameters=schema)], "tool_choice": "required"}
            reply = server.post(CHAT, {"messages": ASK, "max_tokens": 60, **body}).json
            text = reply["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"]
        else:
            text = said(protocol, asked(server, protocol, schema).json)
        assert json.loads(text).get("a", "x") == "x"
        assert ("a" in json.loads(text)) == (schema is not EMPTY)


@pytest.mark.parametrize("form", [{}, [], {"type": "json_object"}])
def test_a_format_may_say_nothing(server: Running, form: Any) -> None:
    body = {"messages": ASK, "max_tokens": 40, "response_format": form}
    content = server.post(CHAT, body).json["choices"][0]["message"]["content"]
    assert content.startswith("{") == bool(form)
    output = server.post("/v1/responses", {"input": ASK, **body}).json["output"]
    assert output[0]["content"][0]["text"] == content


def test_stop_strings_end_a_response_and_no_call(server: Running) -> None:
    """A model whose template knows no tools writes both in JSON that the grammar demands."""

    def answer(*banned: str, stop: Any = ()) -> Any:
        ids = [server.post("/tokenize", {"content": one}).json["tokens"][0] for one in banned]
        tools = [function("f", parameters={**MEANT, "additionalProperties": False})]
        body = {"messages": ASK, "system": "Tell a long story.", "max_tokens": 40, "tools": tools}
        assert server.post("/v1/messages/count_tokens", body).status == 200
        bias = dict(zip(map(str, ids), (-100, -8), strict=False))
        reply = server.post("/v1/messages", {**body, "logit_bias": bias, "stop_sequences": stop})
        return reply.json

    call, said = answer("response"), answer("name", '"')["content"][0]["text"]
    cut = answer("response", stop=[":", '"', "}", "x"])
    assert cut["content"][0]["input"] == call["content"][0]["input"] == {"a": "x"}
    assert (cut["stop_reason"], len(said) > 8) == ("tool_use", True)
    for stop, ends in ((said[5:8], said[5:8]), ("}", None)):
        found = answer("name", '"', stop=["response", stop])
        assert found["stop_sequence"] == ends
        assert found["content"][0]["text"] == (said[:5] if ends else said)
