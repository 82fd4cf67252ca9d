"""Prompts with a long prefill, and answers longer than the context."""

from typing import Any

import pytest

from tests.server.bodies import CHAT, user
from tests.server.process import Running, module_server

pytestmark = pytest.mark.nightly

SENTENCE = "The fox and the bird went to the river. "
LONG = SENTENCE * 60

shifting = module_server(
    *("-c", "768", "-t", "1", "--temp", "0", "--context-shift"),
    *("--parallel", "2", "--drafter", "none"),
)
ENDLESS = {"ignore_eos": True}


def test_context_shift_continues_the_answer(shifting: Running) -> None:
    answer = shifting.post("/completion", {"prompt": "Once", "n_predict": 900, **ENDLESS}).json
    assert answer["timings"]["predicted_n"] == 900
    assert (answer["truncated"], answer["tokens_cached"] < 768) == (True, True)
    assert answer["prompt"].endswith("Once")
    refused = shifting.post("/completion", {"prompt": LONG * 4, "n_predict": 4})
    assert (refused.status, refused.json["error"]["type"]) == (400, "exceed_context_size_error")


@pytest.mark.parametrize(("keep", "kept"), [(0, range(2)), (100, range(99, 103)), (-1, None)])
def test_n_keep(shifting: Running, keep: int, kept: range | None) -> None:
    """The next request's cached tokens show what the context shift kept."""
    shifting.post("/slots/0?action=erase", {})
    prompt = "".join(f"{number} foxes went to the river. " for number in range(50))
    asked = {"prompt": prompt, "n_keep": keep}
    said = shifting.post("/completion", {**asked, "n_predict": 500, **ENDLESS}).json
    assert said["generation_settings"]["n_keep"] == keep
    again = shifting.post("/completion", {**asked, "n_predict": 1}).json["timings"]
    whole = again["cache_n"] + again["prompt_n"]
    assert whole > 300
    assert again["cache_n"] in (range(whole - 1, whole) if kept is None else kept)


@pytest.mark.parametrize(
    ("path", "body", "where"),
    [
        (CHAT, {"max_tokens": 90}, ("usage", "completion_tokens")),
        ("/v1/messages", {"max_tokens": 90}, ("usage", "output_tokens")),
        ("/v1/responses", {"max_output_tokens": 90}, ("usage", "output_tokens")),
        ("/api/chat", {"options": {"num_predict": 90, "num_keep": -1}}, ("eval_count",)),
    ],
)
def test_context_shift_in_every_protocol(
    shifting: Running, path: str, body: dict[str, Any], where: tuple[str, ...]
) -> None:
    ask = [user(LONG + SENTENCE * 10 + "Tell me a story.")]
    reply = shifting.post(path, {"messages": ask, "input": ask, **body})
    assert reply.status == 200, reply.body
    count = reply.events[-1]
    for name in where:
        count = count[name]
    assert count > 60


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": [user(LONG)]}),
        ("/v1/completions", {"prompt": LONG + "1"}),
        ("/completion", {"prompt": LONG + "2"}),
    ],
)
def test_prompt_progress_is_reported(shifting: Running, path: str, body: dict[str, Any]) -> None:
    shifting.post("/slots/0?action=erase", {})
    asked = {**body, "max_tokens": 3, "return_progress": True, "stream": True}
    for cached in (False, True):
        told = shifting.post(path, asked).events
        reading = [one["prompt_progress"] for one in told if "prompt_progress" in one]
        text = [n for n, one in enumerate(told) if "prompt_progress" not in one]
        processed = [one["processed"] for one in reading]
        assert processed == sorted(set(processed))
        first, last = reading[0], reading[-1]
        assert first["processed"] == first["cache"]
        assert (first["cache"] > 0) is cached
        assert last["processed"] == last["total"] > 600
        assert {one["total"] for one in reading} == {last["total"]}
        assert all(one["time_ms"] >= 0 for one in reading)
        assert len(reading) >= (2 if cached else 3)
        assert len([n for n in text if n > len(reading)]) >= 3, "the answer follows"
    for plain in ({"return_progress": False}, {"stream": False}):
        assert b"prompt_progress" not in shifting.post(path, {**asked, **plain}).body
