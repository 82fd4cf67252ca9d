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
from localspec.prompting.reasoning import Channels, Thinking
from localspec.server.tool_readers import CallOrResponse, CallReader

TYPED: dict[str, Any] = {"s": {"type": "string"}, "n": {"type": "integer"}, "o": {"type": "object"}}
MAYBE = {"u": {"type": ["string", "null"]}, "v": {"anyOf": [{"type": "string"}, {"enum": [None]}]}}
TYPED |= {**MAYBE, "e": {"enum": ["1", "2"]}, "w": {"oneOf": [{"const": 1}, {"type": "string"}]}}
TOOLS: dict[str, dict[str, Any]] = {"f": {"properties": TYPED}, "g": {}, "get_weather": {}}


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


def call(name: str, arguments: str) -> list[Piece]:
    return [CallBegins(name), CallArguments(arguments)]


thinking = partial(Thinking, Plain(), open=False)
any_format = partial(CallReader, TOOLS)
caller = lambda: Thinking(any_format(), open=True, calls=["<tool_call>"])  # noqa: E731
call_or_response = partial(CallOrResponse, TOOLS)
CASES: list[tuple[Callable[[], Reader], str, list[Piece]]] = [
    (Plain, "As it is <tool_call>", [Text("As it is <tool_call>")]),
    (
        any_format,
        'Let me see.\n<tool_call>\n{"name": "f", "arguments": {"a": "x}\\""}}\n</tool_call>\n'
        '<tool_call>{"arguments": {"b": [1, {"c": 2}]}, "name": "h"}</tool_call>',
        [Text("Let me see."), *call("f", '{"a": "x}\\""}'), *call("h", '{"b": [1, {"c": 2}]}')],
    ),
    (any_format, "a < b <tool_ca nothing\n", [Text("a < b <tool_ca nothing\n")]),
    (any_format, "a\n\n<tool_call>\nno</tool_call>", [Text("a\n\n<tool_call>\nno</tool_call>")]),
    (any_format, '<tool_call>\n{"name": "f"', [CallBegins("f")]),
    (any_format, '<tool_call>\n{"na', [Text('<tool_call>\n{"na')]),
    (any_format, '{"name": "f", "parameters": {"x": 1}}', call("f", '{"x": 1}')),
    (any_format, ' \n{"name": "f", "arguments": {}}\n', call("f", "{}")),
    (
        any_format,
        '[{"name": "f", "arguments": {"x": 1}}, {"name": "g", "arguments": "{\\"q\\": 2}"}]',
        [*call("f", '{"x": 1}'), *call("g", '{"q": 2}')],
    ),
    (any_format, '[TOOL_CALLS] [{"name":"f","arguments":{}}]', call("f", "{}")),
    (any_format, '<|python_tag|>{"name":"f","parameters":{}}', call("f", "{}")),
    (any_format, '<tool_call>{"name": "f"}</tool_call>', call("f", "{}")),
    (any_format, '{"name": "f", "arguments": null}; {"name": "g", "parameters": ""}',
     [*call("f", "{}"), *call("g", "{}")]),
    (any_format, '{"no": "call"} and text', [Text('{"no": "call"} and text')]),
    (any_format, 'Hello {"name": 1}', [Text('Hello {"name": 1}')]),
    (any_format, "[1] is a note", [Text("[1] is a note")]),
    (any_format, '{"name": 3, "arguments": {}}', [Text('{"name": 3, "arguments": {}}')]),
    (any_format, '{"name": "Bob", "age": 3}', [Text('{"name": "Bob", "age": 3}')]),
    (
        any_format,
        "Now.\n<tool_call>\n<function=f>\n<parameter=s>\n12\n</b>\n\n</parameter>\n"
        "<parameter=n>\n3\n</parameter>\n<parameter=o>\n{'a': True}\n</parameter>\n"
        '<parameter=x>"é"</parameter></function>\n</tool_call>\n<function=g></function>',
        [Text("Now."), *call("f", '{"s": "12\\n</b>\\n", "n": 3, "o": {"a": true}, "x": "é"}'),
         *call("g", "{}")],
    ),
    (any_format, "<function=f><parameter=u>12</parameter><parameter=v>true</parameter>"
     "<parameter=e>1</parameter><parameter=w>1</parameter></function>",
     call("f", '{"u": "12", "v": "true", "e": "1", "w": 1}')),
    (any_format, "<function=f><parameter=v>null</parameter></function>", call("f", '{"v": null}')),
    (any_format, "<tool_call><function=f><parameter=n>many</parameter></function>",
     call("f", '{"n": "many"}')),
    (
        any_format,
        "<function=f>\n<parameter=s>\necho </parameter> <parameter\n</parameter>\n</function>",
        call("f", '{"s": "echo </parameter> <parameter"}'),
    ),
    (any_format, '<tool_call>{"name": "g", "arguments": {}}}</tool_call>', call("g", "{}")),
    (
        any_format,
        "Now.\n<tool_call>\nf\n<arg_key>s</arg_key>\n<arg_value>\n a</arg_value> b</arg_value>\n"
        "<arg_key>n</arg_key><arg_value>3</arg_value>\n</tool_call>\n<tool_call>g</tool_call>",
        [Text("Now."), *call("f", '{"s": "\\n a</arg_value> b", "n": 3}'), *call("g", "{}")],
    ),
    (any_format, "<tool_call>\n<function=f>\n<parameter=n>\n3\n</parameter>\n",
     call("f", '{"n": 3}')),
    (any_format, "<function=h>", call("h", "{}")),
    (any_format, "<tool_call>none</tool_call>", [Text("<tool_call>none</tool_call>")]),
    (
        any_format,
        'Now.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"n": 1}<｜tool▁call▁end｜>'
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{}\n```<｜tool▁call▁end｜>"
        "<｜tool▁calls▁end｜>",
        [Text("Now."), *call("f", '{"n": 1}'), *call("g", "{}")],
    ),
    (
        any_format,
        "Now.<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0"
        '<|tool_call_argument_begin|>{"n": 1}<|tool_call_end|><|tool_call_begin|>functions.g:1'
        "<|tool_call_argument_begin|> {}<|tool_call_end|><|tool_calls_section_end|>",
        [Text("Now."), *call("f", '{"n": 1}'), *call("g", "{}")],
    ),
    (
        any_format,
        'Now.\n<minimax:tool_call>\n<invoke name="f">\n<parameter name="s">\n1</parameter>\n'
        '<parameter name="n">3</parameter>\n</invoke>\n<invoke name="g">\n</invoke>\n'
        "</minimax:tool_call>",
        [Text("Now."), *call("f", '{"s": "\\n1", "n": 3}'), *call("g", "{}")],
    ),
    (
        any_format,
        '<|START_ACTION|>[\n {"tool_call_id": "0", "tool_name": "f", "parameters": {"n": 1}},\n'
        ' {"tool_call_id": "1", "tool_name": "g", "parameters": {}}\n]<|END_ACTION|>',
        [*call("f", '{"n": 1}'), *call("g", "{}")],
    ),
    (
        any_format,
        'Action:\n```json\n[\n {\n "tool_name": "f",\n "parameters": {"n": 1}\n }\n]```',
        call("f", '{"n": 1}'),
    ),
    (any_format, "Action:\n```sh\nls\n```", [Text("Action:\n```sh\nls\n```")]),
    (
        any_format,
        'Now.<start_function_call>call:f{s:<escape>a, "b":{}<escape>,n:1,o:{k:[true,<escape>x'
        "<escape>]}}<end_function_call><start_function_call>call:g{}<end_function_call>",
        [
            Text("Now."),
            *call("f", '{"s":"a, \\"b\\":{}","n":1,"o":{"k":[true,"x"]}}'),
            *call("g", "{}"),
        ],
    ),
    (any_format, '<|tool_call>call:f{s:<|"|>a<|"|>}<tool_call|>', call("f", '{"s":"a"}')),
    (any_format, 'f\n```json\n{"n": 1}\n```', [Text('f\n```json\n{"n": 1}\n```')]),
    (any_format, '<TOOLCALL>[{"name": "g", "arguments": {}}]</TOOLCALL>', call("g", "{}")),
    (any_format, '<|tool_call|>[{"name": "g", "arguments": {}}]<|/tool_call|>', call("g", "{}")),
    (any_format, 'Now.\n<seed:tool_call>\n<function=f>\n<parameter=s>x</parameter>\n</function>\n'
     "</seed:tool_call>", [Text("Now."), *call("f", '{"s": "x"}')]),
    (any_format, '<tool_calls>\n<tool_call>f\n```json\n{"s": "x"}\n```\n</tool_call>\n'
     "</tool_calls>", call("f", '{"s": "x"}')),
    (any_format,
     "<tool_call>{'name': 'f', 'arguments': {'s': 'it\\'s \"a\"', 'o': {'k': None}}}</tool_call>",
     call("f", '{"s": "it\'s \\"a\\"", "o": {"k": null}}')),
    (any_format, '{"name": "f", "arguments": {"o": {"a": True, "b": False}, "s": "True"}}',
     call("f", '{"o": {"a": true, "b": false}, "s": "True"}')),
    (any_format, 'Now.\n<function_calls>\nf(s="a(\'b)", n=2)\ng()\n</function_calls>',
     [Text("Now."), *call("f", '{"s": "a(\'b)", "n": 2}'), *call("g", "{}")]),
    (any_format, 'f(s="""a "b")""", n=1)', call("f", '{"s": "a \\"b\\")", "n": 1}')),
    (any_format, "f(x) is a function", [Text("f(x) is a function")]),
    (any_format, '<|tools_prefix|>[{"f": {"n": 1}}, {"g": {}}]<|tools_suffix|>',
     [*call("f", '{"n": 1}'), *call("g", "{}")]),
    (
        any_format,
        '<|tool_calls|><|tool_call:begin|>a1<|tool_call:name|>f<|tool_call:args|>{"n": 1}'
        "<|tool_call:end|><|tool_call:begin|>b2<|tool_call:name|>g<|tool_call:args|>{}"
        "<|tool_call:end|><|calls|>",
        [*call("f", '{"n": 1}'), *call("g", "{}")],
    ),
    (
        any_format,
        'Now.\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name="f">\n'
        '<｜DSML｜parameter name="s" string="true">1\n</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="n" string="false">3</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
        '<｜DSML｜invoke name="g">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>',
        [Text("Now."), *call("f", '{"s": "1\\n", "n": 3}'), *call("g", "{}")],
    ),
    (any_format, '>>>all\nNow.\n>>>f\n{"n": 1}>>>g\n{}',
     [Text("Now."), *call("f", '{"n": 1}'), *call("g", "{}")]),
    (any_format, 'So:\n```json\n{"name": "f", "arguments": {}}\n```',
     [Text("So:"), *call("f", "{}")]),
    (any_format, 'So:\n```json\n{"name": "Bob"}\n```',
     [Text('So:\n```json\n{"name": "Bob"}\n```')]),
    (any_format, '<tools>{"name": "f", "arguments": {}}</tools>', call("f", "{}")),
    (any_format, '<|action_start|><|plugin|>{"name": "f", "parameters": {}}<|action_end|>',
     call("f", "{}")),
    (any_format, 'functools[{"name": "f", "arguments": {}}]', call("f", "{}")),
    (any_format, "import functools\nfrom a", [Text("import functools\nfrom a")]),
    (any_format, 'Hm.<function=f>{"s": "x"}</function>', [Text("Hm."), *call("f", '{"s": "x"}')]),
    (any_format, '<tool_call>{"name": "f", "arguments": {"s": "a\n\t\\n"}}</tool_call>',
     call("f", '{"s": "a\\n\\t\\n"}')),
    (any_format, '[TOOL_CALLS]f[ARGS]{"s": "a\nb"}', call("f", '{"s": "a\\nb"}')),
    (thinking, "<think>thought\nHm\n</think>Yes", [Thought("Hm"), Text("Yes")]),
    (any_format, '[f(s="a)]", n=-1), g()]',
     [*call("f", '{"s": "a)]", "n": -1}'), *call("g", "{}")]),
    (any_format, "<|python_start|>[a.f(o={'k': [1]})]<|python_end|>",
     call("a.f", '{"o": {"k": [1]}}')),
    (any_format, "[f(x)] is text", [Text("[f(x)] is text")]),
    (any_format, 'So: <function name="f"><param name="s"><![CDATA[<a>\n</param>]]></param>'
     '<param name="n">3</param></function>\n<function name="g"></function>',
     [Text("So: "), *call("f", '{"s": "<a>\\n</param>", "n": 3}'), *call("g", "{}")]),
    (any_format, '<function name="f"><param name="s">a < b', call("f", '{"s": "a < b')),
    (any_format, '<|function_call|>{"name": "f", "arguments": {"n": 1}}', call("f", '{"n": 1}')),
    (any_format, "[f(s='never ends", [Text("[f(s='never ends")]),
    (
        any_format,
        'I will g {}.\n[TOOL_CALLS]get_weather[ARGS]{"c": 1}[TOOL_CALLS]g012345678{"d": {}}',
        [Text("I will g {}."), *call("get_weather", '{"c": 1}'), *call("g", '{"d": {}}')],
    ),
    (any_format, 'Yes. [TOOL_CALLS]get_weather[CALL_ID]abcdefghi[ARGS]{"c": 1}',
     [Text("Yes. "), *call("get_weather", '{"c": 1}')]),
    (any_format, "get_weather is\ng, f and {", [Text("get_weather is\ng, f and {")]),
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
