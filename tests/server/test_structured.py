"""Structured answers in every protocol: schemas, regular expressions and tools."""

import json
import re
from functools import reduce
from operator import getitem
from typing import Any

import pytest

from tests.server.bodies import ASK, CHAT, function
from tests.server.process import Reply, Running

pytestmark = pytest.mark.nightly

LONG = {"type": "object", "properties": {"text": {"type": "string", "maxLength": 2000}}}
HARD = {"type": "object", "properties": {"n": {"not": {"type": "null"}, "pattern": "(?!x)"}}}


def post_schema(server: Running, protocol: str, schema: Any, **more: Any) -> Reply:
    """Ask one question in a protocol, with a JSON schema for the answer."""
    form = {"type": "json_schema", "schema": schema}
    told = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    options = {"stream": False, "options": {"temperature": 0, "num_predict": 40}}
    bodies: dict[str, tuple[str, dict[str, Any]]] = {
        "openai": (CHAT, {"response_format": told}),
        "huggingface-hub": (CHAT, {"response_format": {"type": "json_object", "value": schema}}),
        "responses": ("/v1/responses", {"text": {"format": {**form, "name": "x"}}}),
        "anthropic": ("/v1/messages", {"output_config": {"format": form}}),
        "ollama": ("/api/chat", {**options, "format": schema}),
        "llama.cpp": ("/completion", {"prompt": "A fox.", "json_schema": schema}),
    }
    path, body = bodies[protocol]
    body |= {"messages": ASK, "input": "A fox.", "max_tokens": 40, "max_output_tokens": 40}
    return server.post(path, {"temperature": 0, **body, **more})


TEXTS: dict[str, tuple[str | int, ...]] = {
    **dict.fromkeys(("openai", "huggingface-hub"), ("choices", 0, "message", "content")),
    "responses": ("output", 0, "content", 0, "text"),
    "anthropic": ("content", 0, "text"),
    "ollama": ("message", "content"),
    "llama.cpp": ("content",),
}
"""Where the text of an answer is, by protocol."""


def answer(server: Running, protocol: str, schema: Any, **more: Any) -> Any:
    """The JSON that is answered, by this schema."""
    reply = post_schema(server, protocol, schema, **more).json
    return json.loads(reduce(getitem, TEXTS[protocol], reply))


@pytest.mark.parametrize("protocol", TEXTS)
def test_answers_match_the_schema(server: Running, protocol: str) -> None:
    for value in ("C:\\temp", "a\nb", 'a"b', [1, {"$ref": "~1"}]):
        assert answer(server, protocol, {"enum": [value]}) == value
    assert answer(server, protocol, {"pattern": r"^\d{4}$", "type": "string"}).isdecimal()
    banned = {"ignore_eos": True, "logit_bias": {"0": -1e300}}  # it ends with its schema
    assert answer(server, protocol, {"enum": [5]}, **banned) == 5
    named = {"type": "object", "required": ["id"], "additionalProperties": {"enum": [1]}}
    assert "id" in answer(server, protocol, named)


@pytest.mark.parametrize("protocol", TEXTS)
def test_unsupported_keywords_are_refused_by_name(server: Running, protocol: str) -> None:
    assert "'not'" in post_schema(server, protocol, HARD).error()
    unique = {"type": "array", "uniqueItems": True}
    assert "'uniqueItems'" in post_schema(server, protocol, unique).error()


@pytest.mark.parametrize("choice", ["none", "auto", "required"])
@pytest.mark.parametrize("schema", [LONG, HARD, {"properties": {"x": {"$ref": "#"}}}])
def test_unsupported_keywords_in_tools_are_accepted(
    server: Running, choice: str, schema: Any
) -> None:
    """One protocol is enough: all share the code for tools."""
    tools = [function("put", parameters=schema)]
    body = {"messages": ASK, "tools": tools, "tool_choice": choice, "max_tokens": 30}
    assert server.post(CHAT, body).status == 200


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/completion"])
@pytest.mark.parametrize(
    "grammar", [{"regex": "(yes|no)/[0-9]{3}"}, {"grammar": 'start: ("yes"|"no") "/" /[0-9]{3}/'}]
)
def test_regular_expressions_and_lark(server: Running, path: str, grammar: dict[str, str]) -> None:
    body = {"messages": ASK, "prompt": "A fox", **grammar, "max_tokens": 20}
    assert re.search(r'"(yes|no)/[0-9]{3}"', json.dumps(server.post(path, body).json))
    assert server.post(path, body | dict.fromkeys(grammar, "(")).status == 400


MEANT: Any = {"type": "object", "properties": {"a": {"enum": ["x"]}}, "required": ["a"]}
EMPTY: Any = {"type": "object", "properties": [], "required": {}, "additionalProperties": False}


@pytest.mark.parametrize("protocol", [*TEXTS, "tool"])
def test_schemas_from_other_languages(server: Running, protocol: str) -> None:
    """PHP has one empty value, Java and .NET write null, Gemini uses capitals."""
    null = {**MEANT, "required": {"1": "a"}, "additionalProperties": None, "$defs": []}
    capitals = {**MEANT, "type": "OBJECT", "properties": {"a": {"enum": {"2": "x"}}, "b": []}}
    for schema in (null, capitals, EMPTY):
        if protocol == "tool":
            body = {"tools": [function("f", parameters=schema)], "tool_choice": "required"}
            reply = server.post(CHAT, {"messages": ASK, "max_tokens": 60, **body}).json
            call = reply["choices"][0]["message"]["tool_calls"][0]
            found = json.loads(call["function"]["arguments"])
        else:
            found = answer(server, protocol, schema)
        assert found.get("a") == (None if schema is EMPTY else "x")


@pytest.mark.parametrize("form", [{}, [], {"type": "json_object"}])
def test_formats_without_a_schema(server: Running, form: Any) -> None:
    body = {"messages": ASK, "max_tokens": 40, "response_format": form}
    content = server.post(CHAT, body).json["choices"][0]["message"]["content"]
    assert content.startswith("{") == bool(form)
    output = server.post("/v1/responses", {"input": ASK, **body}).json["output"]
    assert output[0]["content"][0]["text"] == content
    same = post_schema(server, "ollama", "json" if form else None).json["message"]["content"]
    assert same.startswith("{") == bool(form)


def test_stop_strings_end_text_but_not_calls(server: Running) -> None:
    """Without tools in the template, the grammar wraps both calls and text in JSON."""

    def ask(*banned: str, stop: Any = ()) -> Any:
        ids = [server.post("/tokenize", {"content": one}).json["tokens"][0] for one in banned]
        tools = [function("f", parameters={**MEANT, "additionalProperties": False})]
        body = {"messages": ASK, "system": "Tell a long story.", "max_tokens": 40, "tools": tools}
        assert server.post("/v1/messages/count_tokens", body).status == 200
        bias = dict(zip(map(str, ids), (-100, -8), strict=False))
        reply = server.post("/v1/messages", {**body, "logit_bias": bias, "stop_sequences": stop})
        return reply.json

    call, said = ask("response"), ask("name", '"')["content"][0]["text"]
    cut = ask("response", stop=[":", '"', "}", "x"])
    assert cut["content"][0]["input"] == call["content"][0]["input"] == {"a": "x"}
    assert (cut["stop_reason"], len(said) > 8) == ("tool_use", True)
    for stop, ends in ((said[5:8], said[5:8]), ("}", None)):
        found = ask("name", '"', stop=["response", stop])
        assert found["stop_sequence"] == ends
        assert found["content"][0]["text"] == (said[:5] if ends else said)
