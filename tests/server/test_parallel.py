"""Parallel answers, and clients that disconnect."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import localspec
from tests.server.process import Running, module_server, serving, wait_until
from tests.support.adapters import lora
from tests.support.asking import GREEDY

pytestmark = pytest.mark.nightly

ENDLESS: dict[str, Any] = {"prompt": "Once upon a time", "max_tokens": 600, "ignore_eos": True}
GENERATED = "llamacpp:tokens_predicted_total"

two = module_server(
    *("--parallel", "2", "-c", "1024", "-t", "1", "--temp", "0", "--max-queue", "4")
)


def test_two_slots_answer_and_the_third_request_waits(two: Running) -> None:
    assert two.get("/props").json["total_slots"] == len(two.get("/slots").json) == 2
    asked = [f"{number} little foxes" for number in range(3)]

    def ask(prompt: str) -> str:
        body = {"prompt": prompt, "grammar": f'root ::= "{prompt}" [a-z ]*', "max_tokens": 150}
        return str(two.post("/v1/completions", body).json["choices"][0]["text"])

    with ThreadPoolExecutor() as pool:
        said = pool.map(ask, asked)
        slots = partial(two.get, "/slots")
        wait_until(lambda: all(one["is_processing"] for one in slots().json), "two are written")
    assert 1.0 < two.metric("llamacpp:n_busy_slots_per_decode") < 2.0
    assert all(text.startswith(prompt) for text, prompt in zip(said, asked, strict=True))
    two.wait_until_idle()


def test_several_answers_to_one_request_share_the_slots(two: Running) -> None:
    body = {"prompt": "Once", "n": 3, "max_tokens": 12, "temperature": 1.0, "seed": 4}
    told = two.post("/v1/completions", {**body, "stream": True}).events
    assert not [one["error"] for one in told if "error" in one]
    choices = [one["choices"][0] for one in told]
    ends = [choice["index"] for choice in choices if choice["finish_reason"]]
    assert sorted(ends) == [0, 1, 2]
    both = two.post("/completion", {"prompt": ["Once", "Twice"], "n_predict": 30}).json
    assert {one["id_slot"] for one in both} == {0, 1}
    two.wait_until_idle()


def test_parallel_answers_with_an_adapter(tmp_path: Path, target_path: Path) -> None:
    path = lora(tmp_path / "style.gguf", target_path, gain=3.0)
    with localspec.load(context=512, threads=1, draft="none", lora=path) as engine:
        expected = engine.generate("Once upon a time", max_tokens=24, sampling=GREEDY).text
    arguments = ("-c", "512", "-t", "1", "--temp", "0", "--lora", str(path), "--drafter", "model")
    with serving(tmp_path, *arguments, "--parallel", "2") as running:
        reply = running.post("/v1/completions", {"prompt": "Once upon a time", "max_tokens": 24})
        assert reply.json["choices"][0]["text"] == expected


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", ["/v1/completions", "/completion"])
def test_disconnect_cancels_the_answer(server: Running, path: str, stream: bool) -> None:
    server.wait_until_idle()
    before = server.metric(GENERATED)
    cancelled = server.metric('localspec:answers_total{finish="cancelled"}')
    with server.send(path, {**ENDLESS, "stream": stream, "n_predict": 600}):
        wait_until(lambda: not server.idle, "it is busy")
    server.wait_until_idle()
    assert server.metric(GENERATED) - before < 600
    assert server.metric('localspec:answers_total{finish="cancelled"}') == cancelled + 1


def test_disconnect_leaves_the_queue(server: Running) -> None:
    server.wait_until_idle()
    answers = server.metric("localspec:answers_total")
    with server.send("/v1/completions", ENDLESS) as first:
        wait_until(lambda: not server.idle, "it is busy")
        with server.send("/v1/completions", ENDLESS):
            wait_until(lambda: server.metric("llamacpp:requests_deferred"), "somebody waits")
        wait_until(lambda: not server.metric("llamacpp:requests_deferred"), "nobody waits")
        assert server.metric("llamacpp:requests_processing") == 1, "the first goes on"
        assert first.recv(65536).startswith(b"HTTP/1.1 200")
    server.wait_until_idle()
    assert server.metric("localspec:answers_total") == answers + 1


def test_many_clients_with_disconnects(server: Running) -> None:
    expected = {}
    for number in range(6):
        body = {"prompt": f"{number} foxes", "max_tokens": 8}
        expected[number] = server.post("/v1/completions", body).json["choices"][0]["text"]

    def ask(number: int) -> None:
        body = {"prompt": f"{number % 6} foxes", "max_tokens": 8, "stream": number % 2 == 0}
        if number % 3 == 0:
            server.send("/v1/completions", {**body, "max_tokens": 300}).close()
            return
        told = server.post("/v1/completions", body).events
        text = "".join(event["choices"][0]["text"] for event in told)
        assert text == expected[number % 6], number

    with ThreadPoolExecutor(36) as pool:
        list(pool.map(ask, range(36)))
    server.wait_until_idle()
