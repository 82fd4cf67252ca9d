"""Anthropic's own client, unchanged."""

from collections.abc import Iterator
from typing import Any, Literal

import anthropic
import openai
import pytest
from pydantic import BaseModel

from tests.server.bodies import ASK, CITY, assistant, user
from tests.server.process import Running

pytestmark = pytest.mark.nightly

TOOL: Any = {"name": "weather", "description": "The weather.", "input_schema": CITY}


@pytest.fixture(scope="module")
def claude(server: Running) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(
        base_url=server.address, api_key=server.key, max_retries=0, timeout=60
    ) as made:
        yield made


def test_message_matches_openai(claude: anthropic.Anthropic, client: openai.OpenAI) -> None:
    asked: Any = {"model": "any", "max_tokens": 16, "messages": ASK}
    same = client.chat.completions.create(**asked)
    assert same.usage is not None
    answer = claude.messages.create(**asked)
    with claude.messages.stream(**asked) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    (block,) = answer.content
    assert block.type == "text"
    assert block.text == text == same.choices[0].message.content
    assert answer.role == "assistant"
    for whole in (answer, final):
        assert (whole.stop_reason, whole.usage.output_tokens) == ("max_tokens", 16)
    read = answer.usage.input_tokens + (answer.usage.cache_read_input_tokens or 0)
    assert read == same.usage.prompt_tokens


def test_stop_sequence_with_system_prompt(claude: anthropic.Anthropic) -> None:
    asked: Any = {"model": "any", "max_tokens": 40, "messages": ASK}
    system: Any = [{"type": "text", "text": "You tell stories."}]
    whole = claude.messages.create(**asked, system=system)
    assert whole.content[0].type == "text"
    stop = whole.content[0].text[12:18]
    cut = claude.messages.create(**asked, system=system, stop_sequences=[stop])
    assert cut.stop_reason == "stop_sequence"
    assert cut.stop_sequence == stop


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "weather"}])
def test_tool_call_and_result(claude: anthropic.Anthropic, choice: Any) -> None:
    asked: Any = {"model": "any", "max_tokens": 200, "messages": ASK}
    answer = claude.messages.create(**asked, tools=[TOOL], tool_choice=choice)
    (block,) = answer.content
    assert block.type == "tool_use"
    assert block.name == "weather"
    assert block.input["city"] in ("Paris", "Rome")
    assert answer.stop_reason == "tool_use"
    with claude.messages.stream(**asked, tools=[TOOL], tool_choice=choice) as stream:
        partial = [e.partial_json for e in stream if e.type == "input_json"]
        final = stream.get_final_message()
    assert final.content[0].type == "tool_use"
    assert final.content[0].input == block.input
    assert len(partial) > 3
    result = {"type": "tool_result", "tool_use_id": block.id, "content": "Rain."}
    answered = user([result, {"type": "text", "text": "So?"}])
    goes_on: Any = [*ASK, assistant([block.model_dump()]), answered]
    after = claude.messages.create(
        model="any", max_tokens=8, messages=goes_on, tools=[TOOL], tool_choice={"type": "none"}
    )
    assert after.content[0].type == "text"


def test_parallel_calls_each_have_arguments(claude: anthropic.Anthropic) -> None:
    asked: Any = {"model": "any", "max_tokens": 400, "messages": ASK, "tools": [TOOL]}
    asked["tool_choice"] = {"type": "any", "disable_parallel_tool_use": False}
    found = claude.messages.create(**asked, extra_body={"seed": 1, "temperature": 1.0}).content
    assert len(found) > 1
    assert all(one.type == "tool_use" and one.input["city"] in ("Paris", "Rome") for one in found)


def test_structured_output(claude: anthropic.Anthropic) -> None:
    class Pet(BaseModel):
        species: Literal["fox", "bear"]
        legs: Literal[2, 4]

    asked: Any = {"model": "any", "max_tokens": 60, "messages": ASK}
    pet = claude.messages.parse(**asked, output_format=Pet).parsed_output
    assert isinstance(pet, Pet)
    config: Any = {"format": {"type": "json_schema", "schema": Pet.model_json_schema()}}
    with claude.messages.stream(**asked, output_config=config) as stream:
        assert Pet.model_validate_json("".join(stream.text_stream)) == pet
    before = claude.messages.create(**asked, extra_body={"output_format": config["format"]})
    assert before.content[0].type == "text"
    assert Pet.model_validate_json(before.content[0].text) == pet
    called: Any = {"tools": [TOOL], "output_config": config, "tool_choice": {"type": "any"}}
    assert [one.type for one in claude.messages.create(**asked, **called).content] == ["tool_use"]


def test_count_tokens_matches_usage(claude: anthropic.Anthropic) -> None:
    (model,) = claude.models.list()
    assert type(model).model_validate(model.to_dict()).id == "tale-13m-q8_0"
    assert model.max_input_tokens == 1024
    counted = claude.messages.count_tokens(model="any", messages=ASK).input_tokens
    answer = claude.messages.create(model="any", max_tokens=1, messages=ASK)
    assert counted == answer.usage.input_tokens + (answer.usage.cache_read_input_tokens or 0)
    told = claude.messages.count_tokens(model="any", messages=ASK, tools=[TOOL])
    assert told.input_tokens > counted


def test_threads_are_sent_again(claude: anthropic.Anthropic) -> None:
    thread = claude.beta.messages.thread(model="any", max_tokens=4, messages=[*ASK])
    more: Any = user("Go on.")
    used = [thread.send().usage, thread.send(more).usage]
    whole = claude.beta.messages.count_tokens(model="any", messages=thread.messages[:-1])
    first, later = (one.input_tokens + (one.cache_read_input_tokens or 0) for one in used)
    assert first < later == whole.input_tokens


def test_errors_have_anthropics_format(server: Running, claude: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError) as caught:
        claude.messages.create(model="any", max_tokens=0, messages=ASK)
    assert caught.value.body["error"]["type"] == "invalid_request_error"  # type: ignore[index]
    seen: Any = [user([{"type": "image", "source": {"type": "url", "url": "x"}}])]
    with pytest.raises(anthropic.BadRequestError):
        claude.messages.create(model="any", max_tokens=1, messages=seen)
    wrong = anthropic.Anthropic(base_url=server.address, api_key="wrong", max_retries=0)
    with wrong, pytest.raises(anthropic.AuthenticationError):
        wrong.messages.create(model="any", max_tokens=1, messages=ASK)
