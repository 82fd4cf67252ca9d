"""The page: security policy, figures, and the drafter of each token. See test_page_chat."""

import asyncio
import re
from typing import Any

import pytest

from localspec import Engine
from localspec.server.model_hosts import ModelHost
from tests.server.bodies import CHAT, user
from tests.server.process import Running

pytestmark = pytest.mark.nightly


def test_page_needs_no_key_and_contains_no_data(server: Running) -> None:
    reply = server.get("/", headers={"Authorization": ""})
    assert reply.status == 200
    assert reply.headers["content-type"].startswith("text/html")
    text = reply.body.decode()
    (nonce,) = set(re.findall(r'nonce="([^"]+)"', text))
    policy = reply.headers["content-security-policy"]
    for rule in (
        *(f"script-src 'nonce-{nonce}'", "default-src 'none'", "connect-src 'self'"),
        *("frame-ancestors 'none'", "trusted-types 'none'; require-trusted-types-for 'script'"),
    ):
        assert rule in policy
    assert not re.search(r"(?:src|href|action)=[\"']?(?:\w+:)?//|url\(|@import", text)
    assert "tale-13m" not in text
    assert server.get("/events", headers={"Authorization": ""}).status == 401


def test_page_state(server: Running) -> None:
    server.post("/v1/completions", {"prompt": "The fox, the fox, the fox, the", "max_tokens": 30})
    first, second = server.states(2)
    assert first["model"] == "tale-13m-q8_0"
    assert first["demo"]
    assert first["totals"]["by_drafter"]["ngram"]["accepted"] > 0
    assert sum(first["totals"]["accepted_per_position"]) == first["totals"]["accepted"]
    assert 0 < first["totals"]["later_tokens"] < first["totals"]["generated_tokens"]
    assert (first["running"], first["waiting"]) == (0, 0)
    assert second["requests"] >= first["requests"]
    server.get("/events", headers={"Authorization": ""})  # the page's own
    server.get("/health")
    (third,) = server.states(1)
    assert (third["requests"], third["refused"]) == (second["requests"], second["refused"])


def test_state_has_every_figure_of_the_page(server: Running) -> None:
    text = server.get("/").body.decode()
    (state,) = server.states(1)
    for name in re.findall(r"\bstate\.(\w+)", text):
        assert name in state, name
    for name in re.findall(r"\btotals\.(\w+)", text):
        assert name in state["totals"], name
    for element in re.findall(r'\b(?:at|rows)\("([\w-]+)"', text):
        assert f'id="{element}"' in text, element


def chunks(server: Running, **more: Any) -> list[Any]:
    asked = {"messages": [user("Tell me of a café. The fox, the fox, the fox")], "stream": True}
    return server.post(CHAT, {**asked, "max_tokens": 40, **more}).events


def test_speculation_gives_the_source_of_each_token(server: Running) -> None:
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
    assert re.fullmatch(r"40 tokens · [\d.,]+ tok/s( · [\d.]+× plain llama.cpp)?.*", line)
    for more in ({}, {"speculation": False}):
        assert not any("speculation" in chunk for chunk in chunks(server, **more))
    several = chunks(server, speculation=True, n=2, temperature=1.0, max_tokens=12)
    for number in range(2):
        mine = [chunk for chunk in several if chunk["choices"][0]["index"] == number]
        content = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in mine)
        parts = [part for one in mine for part in one.get("speculation", {}).get("tokens", ())]
        assert "".join(text for text, _ in parts) == content != ""


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("before", [None, 40.0])  # as of a busy machine
def test_small_models_are_compared_with_stock_llama_cpp(
    engine: Engine, before: float | None
) -> None:
    engine.profile.stock = before
    asyncio.run(ModelHost(opener=lambda _: engine, name="fox", path=engine.model.path).load())
    assert engine.profile.stock
    assert engine.profile.stock < 6.0
