"""A client that goes away gives its slot back."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.server.process import PATIENCE, Running, wait_until

pytestmark = pytest.mark.nightly

ENDLESS: dict[str, Any] = {"prompt": "Once upon a time", "max_tokens": 600, "ignore_eos": True}


GENERATED = "llamacpp:tokens_predicted_total"


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", ["/v1/completions", "/completion"])
def test_a_client_that_goes_away(server: Running, path: str, stream: bool) -> None:
    server.wait_until_idle()
    before = server.metric(GENERATED)
    cancelled = server.metric('localspec:answers_total{finish="cancelled"}')
    with server.sent(path, {**ENDLESS, "stream": stream, "n_predict": 600}):
        wait_until(lambda: not server.idle, "it is busy")
    server.wait_until_idle()
    assert server.metric(GENERATED) - before < 600
    assert server.metric('localspec:answers_total{finish="cancelled"}') == cancelled + 1


def test_a_client_that_goes_away_while_it_waits(server: Running) -> None:
    server.wait_until_idle()
    answers = server.metric("localspec:answers_total")
    with server.sent("/v1/completions", ENDLESS) as first:
        wait_until(lambda: not server.idle, "it is busy")
        with server.sent("/v1/completions", ENDLESS):
            wait_until(lambda: server.metric("llamacpp:requests_deferred"), "somebody waits")
        wait_until(lambda: not server.metric("llamacpp:requests_deferred"), "nobody waits")
        assert server.metric("llamacpp:requests_processing") == 1, "the first goes on"
        assert first.recv(65536).startswith(b"HTTP/1.1 200")
    server.wait_until_idle()
    assert server.metric("localspec:answers_total") == answers + 1


def test_many_clients_and_every_third_goes_away(server: Running) -> None:
    expected = {}
    for number in range(6):
        body = {"prompt": f"{number} foxes", "max_tokens": 8}
        expected[number] = server.post("/v1/completions", body).json["choices"][0]["text"]
    wrong = []

    def ask(number: int) -> None:
        body = {"prompt": f"{number % 6} foxes", "max_tokens": 8, "stream": number % 2 == 0}
        if number % 3 == 0:
            server.sent("/v1/completions", {**body, "max_tokens": 300}).close()
            return
        reply = server.post("/v1/completions", body)
        if number % 2:
            text = reply.json["choices"][0]["text"]
        else:
            text = "".join(event["choices"][0]["text"] for event in reply.events)
        if text != expected[number % 6]:
            wrong.append((number, text))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(36)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert wrong == []
    server.wait_until_idle()
