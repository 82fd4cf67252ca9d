"""OpenAI's own client, unchanged, with both of its protocols."""

import json
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
import openai
import pytest
from pydantic import BaseModel, Field

from localspec import Engine
from tests.server.bodies import ASK, CITY, function, user
from tests.server.process import Running
from tests.support.asking import GREEDY

pytestmark = pytest.mark.nightly

REFERRING = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/City"}, "days": {"type": "integer", "minimum": 1}},
    "required": ["city"],
    "$defs": {"City": {"enum": ["Paris", "Rome"]}},
}
TOOLS = [
    function("weather", description="The weather of the next days.", parameters=REFERRING),
    function("clock"),
]


def chat(client: openai.OpenAI, **more: Any) -> Any:
    asked: Any = {"model": "any", "messages": ASK, "max_tokens": 24, **more}
    return client.chat.completions.create(**asked)


def text_of(client: openai.OpenAI, **more: Any) -> str:
    return str(chat(client, **more).choices[0].message.content)


def test_answer_matches_the_engine(client: openai.OpenAI, engine: Engine) -> None:
    answer, own = chat(client), engine.chat(ASK, max_tokens=24, sampling=GREEDY)
    (choice,), usage = answer.choices, answer.usage
    assert (choice.message.content, choice.finish_reason) == (own.text, "length")
    assert answer.system_fingerprint is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (own.stats.prompt_tokens, 24)
    assert usage.total_tokens == 24 + own.stats.prompt_tokens


def test_stream_matches_the_whole_answer(client: openai.OpenAI) -> None:
    chunks = list(chat(client, stream=True, stream_options={"include_usage": True}))
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == text_of(client)
    first = chunks[0].choices[0].delta
    assert (first.role, first.content) == ("assistant", "")
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "length"
    assert [bool(c.usage) for c in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1].choices == []
    assert len({c.id for c in chunks}) == 1
    assert chunks[-1].usage.completion_tokens == 24
    assert all(chunk.usage is None for chunk in chat(client, stream=True))


def test_a_stop_string_is_not_part_of_the_answer(client: openai.OpenAI) -> None:
    text = text_of(client, max_tokens=40)
    stop = text[20:26]
    for stops in (stop, [stop, "never"]):
        (choice,) = chat(client, max_tokens=40, stop=stops).choices
        assert (choice.message.content, choice.finish_reason) == (text[: text.index(stop)], "stop")


def test_several_answers_differ_and_a_seed_repeats_them(client: openai.OpenAI) -> None:
    def texts(seed: int) -> list[str]:
        answer = chat(client, n=3, temperature=1.0, seed=seed)
        assert [choice.index for choice in answer.choices] == [0, 1, 2]
        return [choice.message.content for choice in answer.choices]

    assert len(set(texts(7))) == 3
    assert texts(7) == texts(7)
    assert texts(7) != texts(107)


def test_log_probabilities(client: openai.OpenAI, engine: Engine) -> None:
    (choice,) = chat(client, max_tokens=6, logprobs=True, top_logprobs=3).choices
    assert "".join(t.token for t in choice.logprobs.content) == choice.message.content
    stream = engine.stream(ASK, max_tokens=6, sampling=GREEDY, logprobs=3)
    told = [one for chunk in stream if chunk.step for one in chunk.step.logprobs]
    for theirs, ours in zip(choice.logprobs.content, told, strict=True):
        assert theirs.logprob == pytest.approx(ours.logprob, abs=0.05)
        assert len(theirs.top_logprobs) == 3
        assert theirs.top_logprobs[0].logprob >= theirs.top_logprobs[2].logprob


def test_logit_bias_and_penalties_change_the_answer(client: openai.OpenAI, engine: Engine) -> None:
    text = text_of(client)
    (first, *_) = engine.tokenize(text)
    assert not text_of(client, logit_bias={str(first): -100}).startswith(text[:4])
    assert text_of(client, frequency_penalty=2.0, presence_penalty=2.0) != text


def test_predicted_output_is_drafted_and_keeps_the_text(client: openai.OpenAI) -> None:
    text = text_of(client, max_tokens=60)
    prediction = {"type": "content", "content": text}
    predicted = chat(client, max_tokens=60, prediction=prediction)
    assert predicted.choices[0].message.content == text
    accepted = predicted.usage.completion_tokens_details.accepted_prediction_tokens
    timings = predicted.model_extra["timings"]
    assert timings["draft_n"] >= timings["draft_n_accepted"] == accepted > 40


def test_structured_output(client: openai.OpenAI) -> None:
    class Animal(BaseModel):
        kind: Literal["fox", "owl"]
        wild: bool

    class Answer(BaseModel):
        animals: Annotated[list[Animal], Field(max_length=2)]
        good: bool

    answer = client.chat.completions.parse(
        model="any", messages=ASK, response_format=Answer, max_tokens=200, temperature=1.0, seed=5
    )
    assert answer.choices[0].finish_reason == "stop"
    assert isinstance(answer.choices[0].message.parsed, Answer)


@pytest.mark.parametrize("choice", ["required", function("weather")])
def test_required_tool_call(client: openai.OpenAI, choice: Any) -> None:
    asked: Any = {"tools": TOOLS[:1], "tool_choice": choice, "max_tokens": 200}
    (whole,) = chat(client, **asked).choices
    (call,) = whole.message.tool_calls
    assert (call.type, call.function.name) == ("function", "weather")
    assert json.loads(call.function.arguments)["city"] in ("Paris", "Rome")
    assert (whole.finish_reason, whole.message.content) == ("tool_calls", None)
    form = {"type": "json_object"}  # of text, and not of a call
    chunks = list(chat(client, stream=True, response_format=form, **asked))
    assert chunks[0].choices[0].delta.content is None
    parts = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or []]
    assert parts[0].id
    assert parts[0].function.name == "weather"
    assert all(part.id is None and part.index == 0 for part in parts[1:])
    arguments = "".join(part.function.arguments or "" for part in parts)
    assert json.loads(arguments)["city"] in ("Paris", "Rome")
    assert len(parts) > 3


def test_completion_prompt_formats(client: openai.OpenAI, engine: Engine) -> None:
    text, vocabulary = "Once upon a time", engine.model.vocabulary
    create: Any = partial(client.completions.create, model="any", max_tokens=5)
    (one,) = create(prompt=text).choices
    tokens = [vocabulary.bos] * vocabulary.adds_bos + engine.tokenize(text)
    assert create(prompt=tokens).choices[0].text == one.text
    several = create(prompt=[text, "The fox"], n=2).choices
    assert [choice.index for choice in several] == [0, 1, 2, 3]
    assert several[0].text == several[1].text == one.text
    (echoed,) = create(prompt=text, echo=True, logprobs=2).choices
    assert "".join(echoed.logprobs.tokens) == echoed.text == text + one.text
    streamed = create(prompt=text, stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed) == one.text
    for given in (False, True):  # as for chat completions
        (choice,) = create(prompt=text, logprobs=given).choices
        assert (choice.logprobs is not None) == given


def test_an_echo_has_the_prompts_log_probabilities(server: Running, engine: Engine) -> None:
    text = "Once upon a time there was a naïve fox."
    tokens = engine.tokenize(text)
    ask = {"prompt": [tokens], "max_tokens": 1, "temperature": 0, "echo": True, "logprobs": 1}
    answer = server.post("/v1/completions", ask).json["choices"][0]
    told = answer["logprobs"]
    assert (told["token_logprobs"][0], told["top_logprobs"][0]) == (None, None)
    assert {len(one) for one in told.values()} == {len(tokens) + 1}
    for at in range(1, len(tokens)):
        row = engine.logits(tokens[:at]).astype(np.float64)
        expected = row[tokens[at]] - np.logaddexp.reduce(row)
        assert told["token_logprobs"][at] == pytest.approx(expected, abs=0.2)
    assert sum(told["token_logprobs"][1:-1]) > -60.0  # it is what the model was made for
    for offset, piece in zip(told["text_offset"], told["tokens"], strict=True):
        assert "\ufffd" in piece or answer["text"][offset:].startswith(piece)
    # Raw text has in front of it what the model wants there, which no one asked about.
    raw = server.post("/v1/completions", ask | {"prompt": text}).json["choices"][0]["logprobs"]
    assert raw["tokens"][:-1] == told["tokens"][:-1]
    assert (raw["token_logprobs"][0] is None) != engine.model.vocabulary.adds_bos
    # Control tokens have no text.
    control = [engine.model.vocabulary.special_tokens["<|user|>"].id] * 2
    events = server.post("/v1/completions", ask | {"prompt": [control], "stream": True}).events
    parts = [choice["logprobs"] for event in events for choice in event["choices"]]
    assert sum(len(one["tokens"]) for one in parts if one) == 3
    several = server.post("/v1/completions", ask | {"n": 2}).json["choices"]
    assert [choice["logprobs"] for choice in several] == [told, told]
    # In events the prompt comes first.
    first = server.post("/v1/completions", ask | {"stream": True}).events[0]["choices"][0]
    assert first["text"] == text
    assert first["logprobs"] == {name: one[:-1] for name, one in told.items()}


TOOL: Any = {"type": "function", "name": "weather", "parameters": CITY}


def test_response_matches_chat(client: openai.OpenAI) -> None:
    asked: Any = {"input": ASK[0]["content"], "max_output_tokens": 16, "prompt_cache_key": "k"}
    answer = client.responses.create(model="any", **asked)
    same = client.chat.completions.create(model="any", messages=ASK, max_tokens=16)
    assert (answer.output_text, answer.status) == (same.choices[0].message.content, "incomplete")
    values = {"max_output_tokens": 16, "temperature": 0.0, "text": {"format": {"type": "text"}}}
    # Strict clients expect all fields, null or not.
    values |= dict.fromkeys(("completed_at", "service_tier", "safety_identifier", "max_tool_calls"))
    values |= {"prompt_cache_key": "k", "presence_penalty": 0.0, "frequency_penalty": 0.0}
    assert values.items() <= answer.to_dict().items()
    assert (answer.incomplete_details and answer.incomplete_details.reason) == "max_output_tokens"
    assert (answer.usage and answer.usage.output_tokens) == 16
    assert type(answer).model_validate(answer.to_dict())  # the client itself leaves that out


def test_response_stream_events(client: openai.OpenAI) -> None:
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


def test_response_function_call(client: openai.OpenAI) -> None:
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
        *({"previous_response_id": "resp_1"}, {"background": True}, {"input": []}),
        *({"tools": [{"type": "web_search"}]}, {"text": {"format": {"type": "xml"}}}),
        *({"input": [{"type": "item_reference", "id": "x"}]}, {"prompt": {"id": "p"}}),
        {"max_output_tokens": 0},
    ],
)
def test_unsupported_response_fields_are_refused(
    client: openai.OpenAI, fields: dict[str, Any]
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(**{"model": "any", "input": ASK, **fields})
    assert str(caught.value.param).partition(".")[0] in fields
