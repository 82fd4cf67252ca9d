"""OpenAI's client, with its newer protocol."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

pytestmark = pytest.mark.nightly

ASK = "Tell me a story about a fox."
TOOL: Any = {
    "type": "function",
    "name": "weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}},
        "required": ["city"],
    },
}


def test_a_text(client: openai.OpenAI) -> None:
    answer = client.responses.create(model="any", input=ASK, max_output_tokens=16)
    same = client.chat.completions.create(
        model="any", messages=[{"role": "user", "content": ASK}], max_tokens=16
    )
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
    kinds = [event.type for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == "response.incomplete"
    assert (
        kinds.count("response.output_item.added") == kinds.count("response.output_item.done") == 1
    )
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
    after = client.responses.create(
        model="any",
        input=[
            {"role": "user", "content": [{"type": "input_text", "text": ASK}]},
            call.model_dump(),
            {"type": "function_call_output", "call_id": call.call_id, "output": "Rain."},
        ],
        instructions="Be brief.",
        max_output_tokens=4,
    )
    assert after.output_text


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
