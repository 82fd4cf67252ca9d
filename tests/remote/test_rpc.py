"""The built-in target on two local `ggml-rpc-server` processes."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import llama_cpp
import pytest

import localspec
from localspec import Engine, ModelOptions, NativeError, ServerUnreachable
from localspec.bench.child import free_port
from localspec.pairing import memory
from localspec.pairing.memory import MemoryNeed, Placement
from localspec.remote import target as remote_target
from tests.cli.process import finished
from tests.server.process import serving
from tests.support.asking import ask, tokens_of, user
from tests.support.greedy import Reference, divergence
from tests.support.sessions import make_drafts_cheap
from tools.native_build import is_built
from tools.remote import DelayedLink, running

needs_servers = pytest.mark.skipif(
    not (llama_cpp.llama_supports_rpc() and is_built("rpc")),
    reason="needs llama.cpp's RPC backend: `make rpc` builds it, in some minutes, and runs "
    "these tests with it",
)
pytestmark = [pytest.mark.nightly, needs_servers]

STORY = [user("Tell me a story about a fox.")]
NEAR_TIE = 0.1
"""Logits by which the servers, which have llama.cpp's kernels, may round differently."""


class TwoServers:
    """Two RPC servers; the second one can be stopped and restarted."""

    def __init__(self, opened: ExitStack) -> None:
        self.ports = free_port(), free_port()
        self.addresses = tuple(f"127.0.0.1:{port}" for port in self.ports)
        opened.enter_context(running(self.ports[0]))
        self._second = opened.enter_context(ExitStack())
        self.start()

    def start(self) -> None:
        self._second.enter_context(running(self.ports[1]))

    def kill(self) -> None:
        self._second.close()


@pytest.fixture
def servers() -> Iterator[TwoServers]:
    with ExitStack() as opened:
        yield TwoServers(opened)


@pytest.fixture
def pair(servers: TwoServers) -> Iterator[Engine]:
    options = ModelOptions(context=512, threads=1, rpc=servers.addresses)
    with localspec.load(options=options) as engine:
        make_drafts_cheap(engine)
        yield engine


def test_answers_equal_local_ones(pair: Engine, plain_answers: Reference) -> None:
    known, diverged, accepted = plain_answers.first(16), [], 0
    for text, ids, expected in zip(known.texts, known.prompts, known.tokens, strict=True):
        stream = ask(pair, text)
        got = tokens_of(stream)
        accepted += stream.stats.accepted
        found = divergence(known.context, ids, expected, got)
        if found is None:
            assert got == expected
        else:
            diverged.append(found)
    assert [found for found in diverged if abs(found[1]) > NEAR_TIE] == []
    assert len(diverged) <= 4
    assert accepted > 50


def test_answer_continues_when_a_server_is_back(pair: Engine, servers: TwoServers) -> None:
    expected = ask(pair, STORY).completion().text
    stream = ask(pair, STORY)
    for number, _ in enumerate(stream):
        if number == 4:
            servers.kill()
            servers.start()
    assert stream.text == expected
    assert [notice for notice in stream.stats.notices if "was lost" in notice]


def test_answer_ends_with_an_error_without_a_server(
    pair: Engine, servers: TwoServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_target, "PATIENCE", 0.5)
    expected = ask(pair, STORY).completion().text
    stream = ask(pair, STORY)
    next(stream)
    servers.kill()
    with pytest.raises(ServerUnreachable) as raised:
        list(stream)
    assert f"The RPC server {servers.addresses[1]} was lost during a pass" in str(raised.value)
    assert "damaged" not in str(raised.value)
    assert stream.text
    assert expected.startswith(stream.text), "the text so far stays"
    with pytest.raises(ServerUnreachable, match="connection refused"):
        ask(pair, STORY).completion()
    servers.start()
    assert ask(pair, STORY).completion().text == expected


def test_too_large_target_is_refused(servers: TwoServers, monkeypatch: pytest.MonkeyPatch) -> None:
    huge = Placement(7, MemoryNeed(), MemoryNeed(weights=1 << 60))
    monkeypatch.setattr(memory, "place", lambda *_: huge)
    with pytest.raises(NativeError, match=r"\(2 of 2 devices are on RPC servers\)"):
        localspec.load(options=ModelOptions(context=512, rpc=servers.addresses))


def test_missing_server_is_refused() -> None:
    missing = f"127.0.0.1:{free_port()}"
    finished("run", "--rpc", missing, "Hello.").refused(
        f"The RPC server {missing} does not answer: connection refused. Start "
        "ggml-rpc-server there, or leave it out of --rpc.",
        code=1,
    )


def test_server_survives_its_clients(servers: TwoServers, tmp_path: Path) -> None:
    body = {"messages": STORY, "max_tokens": 8, "temperature": 0}
    with serving(tmp_path, "-c", "512", "--rpc", ",".join(servers.addresses)) as server:
        first = server.post("/v1/chat/completions", body)
        servers.kill()
        failed = server.post("/v1/chat/completions", body)
        servers.start()
        again = server.post("/v1/chat/completions", body)
    assert failed.status == 503
    assert servers.addresses[1] in json.dumps(failed.json)
    assert again.status == 200
    assert again.json["choices"][0]["message"] == first.json["choices"][0]["message"]


def test_over_a_separate_link(servers: TwoServers) -> None:
    with DelayedLink(("127.0.0.1", servers.ports[0]), 0.001) as link:
        options = ModelOptions(context=512, rpc=(f"127.0.0.1:{link.port}",), parallel=3)
        with localspec.load(options=options) as engine:
            assert any("answers one at a time" in notice for notice in engine.notices)
            first, second = (ask(engine, STORY).completion() for _ in range(2))
            assert first.text == second.text
