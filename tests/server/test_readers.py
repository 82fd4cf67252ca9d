"""Calls, thoughts and text are found in what a model writes, wherever it is cut."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.server.pieces import (
    CallArguments,
    CallBegins,
    Piece,
    Plain,
    Reader,
    Text,
    Thinking,
    Thought,
    joined,
)
from localspec.server.tool_readers import Bare, CallOrResponse, Tagged


def read(make: Callable[[], Reader], parts: list[str]) -> list[Piece]:
    reader = make()
    found = [piece for part in parts for piece in reader.push(part)]
    found += reader.finish()
    thoughts = "".join(piece.text for piece in found if isinstance(piece, Thought))
    others = [piece for piece in found if not isinstance(piece, Thought)]
    return [*([Thought(thoughts)] if thoughts else []), *joined(others)]


def call(name: str, arguments: str) -> list[Piece]:
    return [CallBegins(name), CallArguments(arguments)]


def thinking() -> Reader:
    return Thinking(Plain(), open=False)


CASES: list[tuple[Callable[[], Reader], str, list[Piece]]] = [
    (Plain, "As it is <tool_call>", [Text("As it is <tool_call>")]),
    (
        Tagged,
        'Let me see.\n<tool_call>\n{"name": "f", "arguments": {"a": "x}\\""}}\n</tool_call>\n'
        '<tool_call>{"arguments": {"b": [1, {"c": 2}]}, "name": "g"}</tool_call>',
        [Text("Let me see."), *call("f", '{"a": "x}\\""}'), *call("g", '{"b": [1, {"c": 2}]}')],
    ),
    (Tagged, "a < b <tool_ca nothing\n", [Text("a < b <tool_ca nothing\n")]),
    (Tagged, "<tool_call>\nno</tool_call> x", [Text("<tool_call>\nno</tool_call> x")]),
    (Tagged, '<tool_call>\n{"name": "f"', [CallBegins("f")]),
    (Tagged, '<tool_call>\n{"na', [Text('<tool_call>\n{"na')]),
    (Bare, '{"name": "f", "parameters": {"x": 1}}', call("f", '{"x": 1}')),
    (Bare, ' \n{"name": "f", "arguments": {}}\n', call("f", "{}")),
    (
        Bare,
        '[{"name": "f", "arguments": {"x": 1}}, {"name": "g", "arguments": "{\\"q\\": 2}"}]',
        [*call("f", '{"x": 1}'), *call("g", '{"q": 2}')],
    ),
    (Bare, '[TOOL_CALLS] [{"name":"f","arguments":{}}]', call("f", "{}")),
    (Bare, '<|python_tag|>{"name":"f","parameters":{}}', call("f", "{}")),
    (Tagged, '<tool_call>{"name": "f"}</tool_call>', call("f", "{}")),
    (Bare, '{"name": "f", "arguments": null}; {"name": "g", "parameters": ""}',
     [*call("f", "{}"), *call("g", "{}")]),
    (Bare, '{"no": "call"} and text', [Text('{"no": "call"} and text')]),
    (Bare, 'Hello {"name": 1}', [Text('Hello {"name": 1}')]),
    (Bare, "[1] is a note", [Text("[1] is a note")]),
    (Bare, '{"name": 3, "arguments": {}}', [Text('{"name": 3, "arguments": {}}')]),
    (CallOrResponse, '{"response": "He said \\"hi\\" \\u00e9\\ud83d\\ude00\\n!"}',
     [Text('He said "hi" é😀\n!')]),
    (CallOrResponse, '{ "name": "f", "arguments": {"a": 1.5}}', call("f", '{"a": 1.5}')),
    (CallOrResponse, '[{"name": "f", "arguments": {}}]', call("f", "{}")),
    (thinking, "<think>\nhm </thin hm\n</think>\n\nYes </think>",
     [Thought("hm </thin hm"), Text("Yes </think>")]),
    (thinking, "Hello <think>", [Text("Hello <think>")]),
    (thinking, "<thin", [Text("<thin")]),
    (thinking, "<think>never ends", [Thought("never ends")]),
    (lambda: Thinking(Plain(), open=True), "hm</think>Yes", [Thought("hm"), Text("Yes")]),
]  # fmt: skip


@pytest.mark.parametrize(("make", "text", "expected"), CASES)
def test_what_is_found(make: Callable[[], Reader], text: str, expected: list[Piece]) -> None:
    for size in (1, 2, 3, 5, 1000):
        parts = [text[at : at + size] for at in range(0, len(text), size)]
        assert read(make, parts) == expected, size


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.dictionaries(st.text(), JSON, max_size=4),
    st.booleans(),
    st.sampled_from([None, 1]),
)
def test_any_arguments_come_out_as_they_went_in(
    arguments: dict[str, object], ascii_only: bool, indent: int | None
) -> None:
    said = json.dumps({"arguments": arguments, "name": "f"}, ensure_ascii=ascii_only, indent=indent)
    begins, told = read(Bare, list(said))
    assert begins == CallBegins("f")
    assert isinstance(told, CallArguments)
    assert json.loads(told.text) == arguments


@given(st.text(), st.booleans())
def test_any_response_comes_out_as_it_went_in(text: str, ascii_only: bool) -> None:
    raw = json.dumps({"response": text}, ensure_ascii=ascii_only)
    assert read(CallOrResponse, list(raw)) == ([Text(text)] if text else [])


def test_half_a_surrogate_pair_is_replaced() -> None:
    """Small models write them, and a grammar allows that."""
    assert read(CallOrResponse, list(r'{"response": "a\ud83d b"}')) == [Text("a\ufffd b")]
    assert read(Bare, [r'{"name": "f", "arguments": "\ud83d"}']) == call("f", "?")
