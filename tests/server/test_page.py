"""What the page is served with: its policy, and the figures it shows. See test_page_chat."""

from __future__ import annotations

import re

import pytest

from tests.server.process import Running

pytestmark = pytest.mark.nightly


def test_the_page_needs_no_key_and_says_nothing(server: Running) -> None:
    reply = server.get("/", headers={"Authorization": ""})
    assert reply.status == 200
    assert reply.headers["content-type"].startswith("text/html")
    text = reply.body.decode()
    nonces = set(re.findall(r'nonce="([^"]+)"', text))
    assert len(nonces) == 1
    policy = reply.headers["content-security-policy"]
    assert f"script-src 'nonce-{nonces.pop()}'" in policy
    assert "default-src 'none'" in policy
    assert "connect-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "trusted-types 'none'; require-trusted-types-for 'script'" in policy
    assert not re.search(r"(?:src|href|action)=[\"']?(?:\w+:)?//|url\(|@import", text)
    assert "tale-13m" not in text
    assert server.get("/events", headers={"Authorization": ""}).status == 401


def test_what_it_shows(server: Running) -> None:
    server.post("/v1/completions", {"prompt": "The fox, the fox, the fox, the", "max_tokens": 30})
    first, second = server.states(2)
    assert first["model"] == "tale-13m-q8_0"
    assert first["demo"]
    assert first["totals"]["by_drafter"]["ngram"]["accepted"] > 0
    assert sum(first["totals"]["accepted_per_position"]) == first["totals"]["accepted"]
    assert first["now"]["tokens"] >= 30
    assert (first["running"], first["waiting"]) == (0, 0)
    assert second["requests"] >= first["requests"]


def test_every_figure_of_the_page_is_told(server: Running) -> None:
    text = server.get("/").body.decode()
    (state,) = server.states(1)
    for name in re.findall(r"\bstate\.(\w+)", text):
        assert name in state, name
    for part in ("now", "totals"):
        for name in re.findall(rf"\b{part}\.(\w+)", text):
            assert name in state[part], name
    for element in re.findall(r'\b(?:at|rows)\("([\w-]+)"', text):
        assert f'id="{element}"' in text, element
