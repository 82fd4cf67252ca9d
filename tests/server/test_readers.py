"""Calls, thoughts and text are found in what a model writes, wherever it is cut."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.prompting.pieces import (
    CallArguments,
    CallBegins,
    Piece,
    Plain,
    Reader,
    Text,
    Thought,
)
from localspec.prompting.reasoning import Channels, Thinking, Unwrapped
from localspec.server.tool_readers import CallOrResponse, CallReader
from tests.conftest import DATA

TYPED: dict[str, Any] = {"s": {"type": "string"}, "n": {"type": "integer"}, "o": {"type": "object"}}
MAYBE = {"u": {"type": ["string", "null"]}, "v": {"anyOf": [{"type": "string"}, {"enum": [None]}]}}
MAYBE |= {"r": {"anyOf": [{"$ref": "#/$defs/R"}, {"type": "null"}]}}
TYPED |= {**MAYBE, "e": {"enum": ["1", "2"]}, "w": {"oneOf": [{"const": 1}, {"type": "string"}]}}
DEFS = {"R": {"allOf": [{"enum": ["1", "2"]}]}}
TOOLS: dict[str, dict[str, Any]] = {"f": {"$defs": DEFS, "properties": TYPED}}
TOOLS |= {"g": {}, "get_weather": {}}


def read(make: Callable[[], Reader], parts: list[str]) -> list[Piece]:
    reader = make()
    found = [piece for part in parts for piece in reader.push(part)]
    found += reader.finish()
    thoughts = "".join(piece.text for piece in found if isinstance(piece, Thought))
    others = [piece for piece in found if not isinstance(piece, Thought)]
    return [*([Thought(thoughts)] if thoughts else []), *joined(others)]


def joined(pieces: Sequence[Piece]) -> list[Piece]:
    """The same with neighbours of a kind in one."""
    found: list[Any] = []
    for piece in pieces:
        if isinstance(piece, Text | CallArguments) and found and type(found[-1]) is type(piece):
            found[-1] = type(piece)(found[-1].text + piece.text)
        else:
            found.append(piece)
    return found


def call(name: str, *arguments: str) -> list[Piece]:
    return [CallBegins(name), *map(CallArguments, arguments)]


thinking = partial(Thinking, Plain(), open=False)
granite = lambda: Thinking(Unwrapped(Plain()), open=False)  # noqa: E731
any_format = partial(CallReader, TOOLS)
caller = lambda: Thinking(any_format(), open=True, calls=["<tool_call>"])  # noqa: E731
call_or_response = partial(CallOrResponse, TOOLS)
CASES: list[tuple[Callable[[], Reader], str, list[Piece]]] = [
    (Plain, "As it is <tool_call>", [Text("As it is <tool_call>")]),
    (thinking, "<think>thought\nHm\n</think>Yes", [Thought("Hm"), Text("Yes")]),
    (partial(Thinking, Plain(), open=True), "<think>\nHm</think>Yes", [Thought("Hm"), Text("Yes")]),
    (granite, "<think>Hm</think>\n<response>\na </response>\n</response>",
     [Thought("Hm"), Text("a </response>")]),
    (granite, "a </response>", [Text("a </response>")]),
    (
        Channels,
        "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant<|channel|>commentary<|message|>"
        "First.<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json"
        '<|message|>{"n": 1}<|call|>',
        [Thought("Hm"), Text("First."), *call("f", '{"n": 1}')],
    ),
    (Channels, ' to=functions.f<|channel|>commentary json<|message|>{"n": 1}',
     call("f", '{"n": 1}')),
    (Channels, "<|channel|>final<|message|>a <|x|> b<|return|>", [Text("a <|x|> b")]),
    (Channels, '{"a": 1}', [Text('{"a": 1}')]),
    (partial(Channels, calls=False), '<|channel|>commentary to=functions.f<|message|>{"n": 1}',
     [Text('{"n": 1}')]),
    (partial(CallReader, {}, begun=">>>"), "all\nYes", [Text("Yes")]),
    (Channels, "<|channel|>ana", []),
    (lambda: Channels(any_format()),
     '<|channel|>final<|message|>See: <tool_call>{"name": "f", "arguments": {}}</tool_call>',
     [Text("See: "), *call("f", "{}")]),
    (Channels, "<|channel|>commentary to=assistant<|message|>Yes", [Text("Yes")]),
    (call_or_response, '{"response": "He said \\"hi\\" \\u00e9\\ud83d\\ude00\\n!"}',
     [Text('He said "hi" é😀\n!')]),
    (call_or_response, '{ "name": "f", "arguments": {"a": 1.5}}', call("f", '{"a": 1.5}')),
    (call_or_response, '[{"name": "f", "arguments": {}}]', call("f", "{}")),
    (thinking, "<think>\nhm </thin hm\n</think>\n\nYes </think>",
     [Thought("hm </thin hm"), Text("Yes </think>")]),
    (thinking, "Hello <think>", [Text("Hello <think>")]),
    (thinking, "<thin", [Text("<thin")]),
    (thinking, "<think>a</think>\n<think>b</think>\n\nYes", [Thought("ab"), Text("Yes")]),
    (lambda: Thinking(any_format(), open=True),
     'I call.\n<tool_call>{"name": "f", "arguments": {}}</tool_call>',
     [Thought('I call.\n<tool_call>{"name": "f", "arguments": {}}</tool_call>'), *call("f", "{}")]),
    (caller, 'I call.\n<tool_call>{"name": "f", "arguments": {}}</tool_call>',
     [Thought("I call."), *call("f", "{}")]),
    (caller, "a <tool_call> b</think>c", [Thought("a <tool_call> b"), Text("c")]),
    (thinking, "\n</think>\n\nYes", [Text("Yes")]),
    (thinking, "<think>never ends", [Thought("never ends")]),
    (thinking, "<think>\n\n</think>\n\nthought\nless", [Text("thought\nless")]),
    (partial(Thinking, Plain(), open=True), "hm</think>Yes", [Thought("hm"), Text("Yes")]),
]  # fmt: skip


def case_of(line: str) -> tuple[Callable[[], Reader], str, list[Piece]]:
    text, *told = json.loads(line)
    pieces = ([Text(one)] if isinstance(one, str) else call(*one) for one in told)
    return any_format, text, [piece for some in pieces for piece in some]


CASES += map(case_of, (DATA / "calls.jsonl").read_text(encoding="utf-8").splitlines())


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
    begins, told = read(any_format, list(said))
    assert begins == CallBegins("f")
    assert isinstance(told, CallArguments)
    assert json.loads(told.text) == arguments


@given(st.text(st.sampled_from("\\\\'udbe90fé \n,}]")).filter(lambda text: not text.endswith("\\")))
def test_broken_escapes_come_out_as_json(text: str) -> None:
    said = f'{{"name": "f", "arguments": {{"s": "{text}", "a": [1,], }}}}'
    begins, told = read(any_format, list(said))
    assert [begins, told] == read(any_format, [said])
    assert isinstance(told, CallArguments)
    assert json.loads(told.text)["a"] == [1]


def test_long_arguments_are_not_parsed_with_every_token() -> None:
    reader, said = any_format(), json.dumps({"name": "f", "arguments": {"s": ["x"] * 2_000}})
    told = [piece for part in said for piece in reader.push(part)]
    assert len(told) < 200
    assert joined([*told, *reader.finish()]) == call("f", said[27:-1])


@given(st.text(), st.booleans())
def test_any_response_comes_out_as_it_went_in(text: str, ascii_only: bool) -> None:
    raw = json.dumps({"response": text}, ensure_ascii=ascii_only)
    assert read(call_or_response, list(raw)) == ([Text(text)] if text else [])


def test_half_a_surrogate_pair_is_replaced() -> None:
    assert read(call_or_response, list(r'{"response": "a\ud83d b"}')) == [Text("a\ufffd b")]
    assert read(any_format, [r'{"name": "f", "arguments": "\ud83d"}']) == call("f", "?")
