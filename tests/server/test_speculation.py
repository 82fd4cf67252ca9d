"""Who proposed the tokens of an answer, for clients that ask (`"speculation": true`)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from localspec.chat.figures import Figures
from localspec.server.speculation import summary
from tests.server.process import Running

pytestmark = pytest.mark.nightly

ASK = {
    "messages": [{"role": "user", "content": "Tell me of a café. The fox, the fox, the fox"}],
    "max_tokens": 40,
    "stream": True,
}


def chunks(server: Running, **more: Any) -> list[Any]:
    lines = server.post("/v1/chat/completions", {**ASK, **more}).body.decode().splitlines()
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


def test_each_token_with_its_source(server: Running) -> None:
    found = chunks(server, speculation=True)
    told = [chunk["speculation"] for chunk in found if "speculation" in chunk]
    tokens = [token for one in told for token in one.get("tokens", ())]
    content = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in found)
    assert "".join(text for text, _ in tokens) == content
    (last,) = [chunk for chunk in found if chunk["choices"][0]["finish_reason"]]
    figures, timings = last["speculation"]["figures"], last["timings"]
    assert figures["tokens"] == timings["predicted_n"] == len(tokens) == 40
    drafters = {one["source"]: one["accepted"] for one in figures["drafters"]}
    assert sum(drafters.values()) == timings["draft_n_accepted"] > 0
    for source, accepted in drafters.items():
        assert sum(one == source for _, one in tokens) == accepted
    assert last["speculation"]["summary"].startswith("40 tokens · ")


@pytest.mark.parametrize("more", [{}, {"speculation": False}])
def test_only_where_it_is_asked_for(server: Running, more: dict[str, Any]) -> None:
    assert not any("speculation" in chunk for chunk in chunks(server, **more))


def test_each_of_several_answers_has_its_own(server: Running) -> None:
    found = chunks(server, speculation=True, n=2, temperature=1.0, max_tokens=12)
    for number in range(2):
        mine = [chunk for chunk in found if chunk["choices"][0]["index"] == number]
        content = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in mine)
        tokens = [text for one in mine for text, _ in one.get("speculation", {}).get("tokens", ())]
        assert "".join(tokens) == content != ""


FAST = Figures(
    tokens=76, passes=20, decode_seconds=0.2, speed=420.4, plain_seconds=0.52, drafted=90,
    tested=80, accepted=56, by_drafter={"model": (56, 80)},
)  # fmt: skip


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ({}, "76 tokens · 420 tok/s · 2.6× plain · draft smollm2"),
        ({"plain_seconds": None}, "76 tokens · 420 tok/s · draft smollm2"),
        ({"by_drafter": {"ngram": (9, 9), "model": (0, 9)}},
         "76 tokens · 420 tok/s · 2.6× plain · n-gram index"),
        ({"by_drafter": {"ngram": (9, 9), "model": (1, 9)}},
         "76 tokens · 420 tok/s · 2.6× plain · n-gram index and draft smollm2"),
        ({"by_drafter": {"lookahead": (9, 9)}},
         "76 tokens · 420 tok/s · 2.6× plain · lookahead"),
        ({"by_drafter": {"model": (0, 80)}, "plain_seconds": 0.19},
         "76 tokens · 420 tok/s · 0.9× plain · no draft accepted"),
        ({"by_drafter": {}, "drafted": 0}, "76 tokens · 420 tok/s · not drafted"),
        ({"lossless": False, "rule": "typical"},
         "76 tokens · 420 tok/s · 2.6× plain · draft smollm2 · lossy (typical)"),
    ],
)  # fmt: skip
def test_an_answer_in_one_line(more: dict[str, Any], line: str) -> None:
    given = {name: getattr(FAST, name) for name in FAST.__dataclass_fields__}
    assert summary(Figures(**{**given, **more}), "smollm2") == line


def test_one_token_alone_has_no_speed() -> None:
    assert summary(Figures(tokens=1, passes=1), None) == "1 token"
