"""A client that goes away gives its slot back."""

from __future__ import annotations

import threading
from typing import Any

import openai
import pytest

from tests.server.process import PATIENCE, Running, wait_until

pytestmark = pytest.mark.nightly

ENDLESS: dict[str, Any] = {"prompt": "Once upon a time", "max_tokens": 600, "ignore_eos": True}


def wait_until_busy(server: Running) -> None:
    wait_until(
        lambda: any(slot["is_processing"] for slot in server.get("/slots").json), "it is busy"
    )


def generated(server: Running) -> float:
    return server.metric("llamacpp:tokens_predicted_total")


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", ["/v1/completions", "/completion"])
def test_a_client_that_goes_away(server: Running, path: str, stream: bool) -> None:
    server.wait_until_idle()
    before = generated(server)
    cancelled = server.metric('localspec:answers_total{finish="cancelled"}')
    with server.sent(path, {**ENDLESS, "stream": stream, "n_predict": 600}):
        wait_until_busy(server)
    server.wait_until_idle()
    assert generated(server) - before < 600
    assert server.metric('localspec:answers_total{finish="cancelled"}') == cancelled + 1


def test_the_client_closes_a_stream(server: Running, client: openai.OpenAI) -> None:
    before = generated(server)
    stream = client.completions.create(
        model="any", prompt="Once", max_tokens=600, stream=True, extra_body={"ignore_eos": True}
    )
    for number, _ in enumerate(stream):
        if number == 3:
            stream.close()
            break
    server.wait_until_idle()
    assert generated(server) - before < 600


def test_a_client_that_goes_away_while_it_waits(server: Running) -> None:
    server.wait_until_idle()
    answers = server.metric("localspec:answers_total")
    with server.sent("/v1/completions", ENDLESS) as first:
        wait_until_busy(server)
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
