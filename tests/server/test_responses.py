"""OpenAI's client, with its newer protocol."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from tests.server.bodies import ASK, CITY, user

pytestmark = pytest.mark.nightly

TOOL: Any = {"type": "function", "name": "weather", "parameters": CITY}


def test_a_text(client: openai.OpenAI) -> None:
    answer = client.responses.create(model="any", input=ASK[0]["content"], max_output_tokens=16)
    same = client.chat.completions.create(model="any", messages=ASK, max_tokens=16)
    assert answer.output_text == same.choices[0].message.content
    assert answer.status == "incomplete"
    assert answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert answer.usage is not None
    assert answer.usage.output_tokens == 16
    assert type(answer).model_validate(answer.to_dict())  # the client itself leaves that out


def test_a_stream(client: openai.OpenAI) -> None:
    with client.responses.stream(model="any", input=ASK, max_output_tokens=16) as stream:
        events = list(stream)
    assert all(type(event).model_validate(event.to_dict()) for event in events)
    kinds = [str(event.type) for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == "response.incomplete"
    items = [kinds.count(f"response.output_item.{what}") for what in ("added", "done")]
    assert items == [1, 1]
    numbers = [event.sequence_number for event in events]
    assert numbers == sorted(set(numbers))
    text = "".join(e.delta for e in events if e.type == "response.output_text.delta")
    whole = client.responses.create(model="any", input=ASK, max_output_tokens=16)
    assert text == whole.output_text


def test_a_function(client: openai.OpenAI) -> None:
    asked: Any = {"model": "any", "input": ASK, "tools": [TOOL], "tool_choice": "required"}
    answer = client.responses.create(**asked)
    (call,) = answer.output
    assert call.type == "function_call"
    assert json.loads(call.arguments)["city"] in ("Paris", "Rome")
    assert answer.status == "completed"
    with client.responses.stream(**asked) as stream:
        final = stream.get_final_response()
    assert final.output[0].type == "function_call"
    assert final.output[0].arguments == call.arguments
    ask = user([{"type": "input_text", "text": ASK[0]["content"]}])
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "Rain."}
    asked = {"model": "any", "input": [ask, call.model_dump(), output], "max_output_tokens": 4}
    assert client.responses.create(**asked, instructions="Be brief.").output_text


@pytest.mark.parametrize(
    "fields",
    [
        {"previous_response_id": "resp_1"},
        {"background": True},
        {"tools": [{"type": "web_search"}]},
        {"input": []},
        {"input": [{"type": "item_reference", "id": "x"}]},
        {"text": {"format": {"type": "xml"}}},
    ],
)
def test_what_is_not_there_is_said(client: openai.OpenAI, fields: dict[str, Any]) -> None:
    with pytest.raises(openai.BadRequestError):
        client.responses.create(**{"model": "any", "input": ASK, **fields})
