"""Readers find calls, thoughts and text in a model's output, however it is split."""

import asyncio
import json
from argparse import Namespace
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.prompting.reasoning import (
    CallArguments,
    CallBegins,
    ChannelReader,
    Piece,
    Plain,
    Reader,
    Text,
    Thought,
    ThoughtReader,
    reasoning_reader,
)
from localspec.server import reply
from localspec.server.answers import SILENCE, AnswerPart
from localspec.server.near_json import missing_end
from localspec.server.openai.chat import ChatReply, ChatRequest
from localspec.server.openai.messages import Message
from localspec.server.tool_readers import CallReader
from localspec.server.tools import ArgumentReader, custom_tool
from tests.conftest import DATA
from tests.support.clock import Clock

TYPED: dict[str, Any] = {"s": {"type": "string"}, "n": {"type": "integer"}, "o": {"type": "object"}}
MAYBE = {"u": {"type": ["string", "null"]}, "v": {"anyOf": [{"type": "string"}, {"enum": [None]}]}}
MAYBE |= {"r": {"anyOf": [{"$ref": "#/$defs/R"}, {"type": "null"}]}}
TYPED |= {**MAYBE, "e": {"enum": ["1", "2"]}, "w": {"oneOf": [{"const": 1}, {"type": "string"}]}}
DEFS = {"R": {"allOf": [{"enum": ["1", "2"]}, *[{"$ref": "#/$defs/R"}] * 9]}}
TOOLS: dict[str, dict[str, Any]] = {"f": {"$defs": DEFS, "properties": TYPED}}
TOOLS |= {"g": {}, "get_weather": {}, "a/b c": {}}


def read(make: Callable[[], Reader], parts: list[str]) -> list[Piece]:
    reader = make()
    found = [piece for part in parts for piece in reader.push(part)]
    found += reader.finish()
    thoughts = "".join(piece.text for piece in found if isinstance(piece, Thought))
    others = [piece for piece in found if not isinstance(piece, Thought)]
    return [*([Thought(thoughts)] if thoughts else []), *merge(others)]


def merge(pieces: Sequence[Piece]) -> list[Piece]:
    found: list[Any] = []
    for piece in pieces:
        if isinstance(piece, Text | CallArguments) and found and type(found[-1]) is type(piece):
            found[-1] = type(piece)(found[-1].text + piece.text)
        else:
            found.append(piece)
    return found


def call(name: str, *arguments: str) -> list[Piece]:
    return [CallBegins(name), *map(CallArguments, arguments)]


any_format = partial(CallReader, TOOLS)
call_or_response = partial(CallReader, TOOLS, only=True, responds=True)
LARK = {"type": "grammar", "syntax": "lark", "definition": 'start: "a"'}
CUSTOM = [custom_tool("f", "", {}), custom_tool("exec", "", LARK)]
READERS: dict[str, Callable[[], Reader]] = {
    "plain": Plain,
    "calls": any_format,
    "response": call_or_response,
    "functionary": partial(CallReader, {}, begun=">>>"),
    "thinking": partial(ThoughtReader, Plain(), open=False),
    "open": partial(ThoughtReader, Plain(), open=True),
    "granite": lambda: reasoning_reader("<response>", Plain(), thinks=False),
    "hunyuan": lambda: reasoning_reader("<answer>", any_format(), thinks=False),
    "tagged": lambda: reasoning_reader("<|close|>", any_format(), thinks=True),
    "caller": lambda: ThoughtReader(any_format(), open=True, calls=["<tool_call>"]),
    "called in thoughts": lambda: ThoughtReader(any_format(), open=True),
    "channels": ChannelReader,
    "no calls": partial(ChannelReader, calls=False),
    "called in channels": lambda: ChannelReader(any_format(), names=TOOLS),
    "custom": lambda: ArgumentReader(ChannelReader(any_format()), CUSTOM),
    "bare": lambda: ArgumentReader(call_or_response(bare=["exec"]), CUSTOM),
}


def expected_pieces(told: Any) -> list[Piece]:
    if isinstance(told, list):
        return call(*told)
    if isinstance(told, dict) and "custom" in told:
        return [CallBegins(told["custom"], custom=True), *map(CallArguments, told["input"])]
    return [Text(told) if isinstance(told, str) else Thought(told["thought"])]


LINES = (DATA / "answers.jsonl").read_text(encoding="utf-8").splitlines()
CASES = [(name, text, told) for name, text, *told in map(json.loads, LINES)]


@pytest.mark.parametrize(("reader", "text", "told"), CASES)
def test_calls_thoughts_and_text_are_found(reader: str, text: str, told: list[Any]) -> None:
    expected = [piece for one in told for piece in expected_pieces(one)]
    for size in (1, 2, 3, 5, 1000):
        parts = [text[at : at + size] for at in range(0, len(text), size)]
        assert read(READERS[reader], parts) == expected, size


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(-1e99, 1e99) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), JSON, max_size=4), st.booleans(), st.sampled_from([None, 1]))
def test_any_arguments_round_trip(
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


def test_brackets_that_are_too_deep_end_a_call() -> None:
    found = read(any_format, ['{"name": "f", "arguments": {"s": ' + "[" * 9_999])
    assert [*map(type, found)] == [CallBegins, CallArguments, Text]


def test_long_arguments_are_not_parsed_with_every_token() -> None:
    reader, said = any_format(), json.dumps({"name": "f", "arguments": {"s": ["x"] * 2_000}})
    told = [piece for part in said for piece in reader.push(part)]
    assert len(told) < 200
    assert merge([*told, *reader.finish()]) == call("f", said[27:-1])


@given(st.text(), st.booleans())
def test_any_response_round_trips(text: str, ascii_only: bool) -> None:
    raw = json.dumps({"response": text}, ensure_ascii=ascii_only)
    assert read(call_or_response, list(raw)) == ([Text(text)] if text else [])


@given(JSON.filter(lambda value: isinstance(value, dict)), st.integers(min_value=1))
def test_strings_and_brackets_of_an_object_are_closed(value: Any, length: int) -> None:
    text = json.dumps(value)
    rest = missing_end(text[:length])
    assert rest == "" or json.loads(text[:length] + rest) is not None
    assert missing_end(text[:-1]) == "}"


@given(JSON, st.booleans())
def test_any_input_of_a_custom_tool_round_trips(value: Any, ascii_only: bool) -> None:
    text = value if isinstance(value, str) else json.dumps(value)
    said = json.dumps({"name": "f", "arguments": {"input": text}}, ensure_ascii=ascii_only)
    begins = CallBegins("f", custom=True)
    expected = [begins, *([CallArguments(text)] if text else [])]
    assert read(lambda: ArgumentReader(any_format(), CUSTOM), list(said)) == expected


def test_clients_hear_of_thoughts_that_are_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reply, "monotonic", clock := Clock())

    async def parts() -> AsyncGenerator[Any, None]:
        for _ in range(4):
            clock.now += 0.7 * SILENCE
            yield AnswerPart(answer, Thought("Hm."))

    async def sent() -> list[bytes]:
        found: Any = await ChatReply(answers, wanted).response(request)
        return [part async for part in found.body_iterator]

    request: Any = Namespace(url=Namespace(path="/"))
    answer: Any = Namespace(number=0)
    answers: Any = Namespace(engine=None, model="", all=[answer], parts=parts)
    asked = Message(role="user", content="Hi")
    wanted = ChatRequest(messages=[asked], stream=True, include_reasoning=False)
    assert asyncio.run(sent())[1:] == [*[ChatReply.ping] * 2, ChatReply.last]
