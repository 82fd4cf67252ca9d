"""Who proposed the tokens of an answer, for clients that ask (`"speculation": true`)."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.server.process import Running

pytestmark = pytest.mark.nightly

ASK = {
    "messages": [{"role": "user", "content": "Tell me of a café. The fox, the fox, the fox"}],
    "max_tokens": 40,
    "stream": True,
}


def chunks(server: Running, **more: Any) -> list[Any]:
    return server.post("/v1/chat/completions", {**ASK, **more}).events


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
    line = last["speculation"]["summary"]
    assert re.fullmatch(
        r"40 tokens · [\d.,]+ tok/s( · [\d.]+× (plain llama.cpp|without drafts))?.*", line
    )


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
