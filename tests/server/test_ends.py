"""Where an answer ends does not depend on drafts, in any protocol: what two servers say, one of
which decodes plainly, differs in nothing but times and figures of the drafts."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.server.process import Running, serving

pytestmark = pytest.mark.nightly

SAYS = [{"role": "user", "content": "Tell me a story about a fox."}]
PROMPT = "Tom and Lily went to the park. Tom saw a dog. Lily saw"
CAPS = (3, 40)
STOPS: tuple[list[str], ...] = (
    [],
    ["upon", "Once upon a time, there"],
    ["a time, there was a", "time"],
    [" big dog", "dog", "☃"],
)
OWN = (
    *("id", "created", "created_at", "timings", "system_fingerprint"),
    *("completion_tokens_details", "total_duration", "prompt_eval_duration", "eval_duration"),
    *("generation_settings", "prompt_tokens_details"),
)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, Running]]:
    common = ("-c", "1024", "-t", "1", "--temp", "0")
    with ExitStack() as stack:
        plain, drafted = (
            stack.enter_context(serving(tmp_path_factory.mktemp(name), *common, *arguments))
            for name, arguments in (
                ("plain", ("--drafter", "none")),
                ("drafted", ("--drafter", "model", "--depth", "12")),
            )
        )
        yield plain, drafted


def asked(protocol: str, cap: int, stop: list[str]) -> tuple[str, dict[str, Any]]:
    body: dict[str, Any] = {"stream": False}
    options = {"num_predict": cap, "stop": stop}
    match protocol:
        case "openai chat":
            body |= {"messages": SAYS, "max_tokens": cap, "stop": stop}
            return "/v1/chat/completions", body | {"logprobs": True, "top_logprobs": 2}
        case "openai text":
            body |= {"prompt": PROMPT, "max_tokens": cap, "stop": stop, "logprobs": 2}
            return "/v1/completions", body
        case "openai responses":
            return "/v1/responses", body | {"input": "Tell me a story.", "max_output_tokens": cap}
        case "anthropic":
            body |= {"messages": SAYS, "max_tokens": cap, "stop_sequences": stop}
            return "/v1/messages", body
        case "llama.cpp":
            body |= {"prompt": PROMPT, "n_predict": cap, "stop": stop, "n_probs": 2}
            return "/completion", body | {"return_tokens": True}
        case "ollama chat":
            return "/api/chat", body | {"model": "", "messages": SAYS, "options": options}
        case _:
            return "/api/generate", body | {"prompt": PROMPT, "raw": True, "options": options}


PROTOCOLS = (
    *("openai chat", "openai text", "openai responses", "anthropic"),
    *("llama.cpp", "ollama chat", "ollama generate"),
)


def shared(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: shared(one) for name, one in value.items() if name not in OWN}
    return [shared(one) for one in value] if isinstance(value, list) else value


def said(server: Running, path: str, body: dict[str, Any]) -> Any:
    reply = server.post(path, body)
    assert reply.status == 200, reply.body
    return shared(reply.json)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_ends_are_those_of_plain_decoding(pair: tuple[Running, Running], protocol: str) -> None:
    plain, drafted = pair
    for cap, stop in itertools.product(CAPS, STOPS):
        path, body = asked(protocol, cap, stop)
        assert said(drafted, path, body) == said(plain, path, body), (cap, stop)


@pytest.mark.usefixtures("kernels")
def test_the_drafts_reached_behind_the_ends(pair: tuple[Running, Running]) -> None:
    _, drafted = pair
    path, body = asked("openai chat", 40, ["Once upon a time, there", "upon"])
    whole = drafted.post(path, body).json
    assert whole["choices"][0]["message"]["content"] == "Once "
    assert whole["usage"]["completion_tokens"] == 2
    assert whole["timings"]["draft_n"] >= 2
