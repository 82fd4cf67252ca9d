"""Startup, loading and shutdown of the server."""

import signal
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import psutil
import pytest

from localspec.server.server_options import ServerOptions
from tests.cli.conftest import Cli
from tests.cli.process import finished, patched
from tests.server.bodies import BODIES, CHAT
from tests.server.process import PATIENCE, Running, serving, serving_program, wait_until

pytestmark = pytest.mark.nightly

TWO = ("-m", "demo", "-m", "demo")
LONG = {"prompt": "Once upon a time", "max_tokens": 200, "ignore_eos": True, "stream": True}


def is_closed(server: Running) -> bool:
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", server.port)) != 0


def test_port_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = finished("serve", "--port", port)
    done.refused(f"Port {port} of 127.0.0.1 is taken", "--port", code=1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("-m", "demo", "-m", "/nowhere.gguf"), "/nowhere.gguf"),
        (("-m", "no-such.gguf"), "no-such.gguf"),
        (("-d", "no-such.gguf"), "no-such.gguf"),
        (("--host", "no.such.host.invalid", "--insecure"), "There is no host"),
        (("--host", "192.0.2.1", "--insecure"), "no address 192.0.2.1"),
        (("--host", "0.0.0.0"), "--api-key"),
        (("--host", "127.0.0.1,0.0.0.0"), "--api-key"),
        (("--host", "127.0.0.1,"), "host is empty"),
        (("--host", "127.0.0.1:8080"), "host is '127.0.0.1:8080'. Give a name or an address alone"),
        (("--host", "http://127.0.0.1"), "host is 'http://127.0.0.1'"),
        (("--host", "/tmp/a.sock"), "without a port or a path"),
        (("--allowed-host", "*"), "allowed-host is '*'"),
        (("--port", "70000"), "port is 70000"),
        (("--api-key", ""), "api-key is empty"),
        (("--cors", "nonsense"), "cors is 'nonsense'"),
        (("--max-queue", "-1"), "max-queue is -1"),
        (("--temp", "-1"), "temperature"),
        (("--alias", "a", "--alias", "b"), "more names than models"),
        ((*TWO, "--alias", "a,x", "--alias", "x,b"), "the same name"),
        (("--alias", "a,,b"), "alias is empty"),
        (("--tags", "a", "--tags", "b"), "more tags than models"),
        (TWO, "Give each its own --alias"),
        ((*TWO, "-d", "demo"), "-d auto"),
        (("--session", "a.session", "--parallel", "2"), "--session saves one conversation"),
        ((*TWO, "--session", "a.session"), "A session needs a single model. Give one -m"),
    ],
)
def test_invalid_options_are_reported_in_a_sentence(
    serve: Cli, arguments: tuple[str, ...], words: str
) -> None:
    serve(*arguments).refused(words, code=3 if words.endswith(".gguf") else 2)


def test_missing_server_extra() -> None:
    done = finished("serve", command=patched("sys.modules['uvicorn'] = None"))
    done.refused("pip install '.[server]'", code=1)


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="IPv6's :: does not take IPv4's port")
def test_listens_on_several_addresses(tmp_path: Path) -> None:
    assert ServerOptions(host="[::1],127.0.0.1").hosts == ("::1", "127.0.0.1")
    with serving(tmp_path, "--host", "0.0.0.0, ::", "--insecure", "-t", "1") as server:
        for host in ("127.0.0.1", "::1"):
            with socket.create_connection((host, server.port), 5) as connection:
                connection.sendall(server.head() + b"\r\n")
                assert connection.recv(100).startswith(b"HTTP/1.1 200")


def test_too_many_connections_are_refused_with_a_reason() -> None:
    with serving_program("start(host(lambda _: load()), connections=4)") as server:
        taken = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(4)]
        reply = server.get("/v1/models")
        for one in taken:
            one.close()
        assert (reply.status, reply.headers["retry-after"]) == (503, "1")
        assert "More than 4 connections are open" in reply.json["error"]["message"]
        wait_until(lambda: server.get("/v1/models").status == 200, "they are closed")


def test_a_limit_of_open_files_is_reported_once(tmp_path: Path) -> None:
    if not sys.platform.startswith("linux"):
        pytest.skip("other systems cannot limit another process")
    with serving(tmp_path, "-t", "1") as server:
        process = psutil.Process(server.process.pid)
        most = process.num_fds() + 2
        process.rlimit(psutil.RLIMIT_NOFILE, (most, most))
        taken = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(4)]
        wait_until(lambda: "ulimit -n" in server.log.read_text(), "the limit is reported")
        for one in taken:
            one.close()
        server.wait_until_healthy()
        assert server.log.read_text().count("Too many open files") == 1


FAILING = """
from localspec.server.answers import Answers

async def failing(answers, parts=Answers.parts):
    async for part in parts(answers):
        yield part
        raise MemoryError

Answers.parts = failing
start(host(lambda _: load()))
"""


IN_THREADS = """
import threading
from localspec.llama.vocabulary import Vocabulary
from localspec.prompting.marked_text import MarkedText
from localspec.server.anthropic import Conversation
from localspec.server.openai.responses import ResponsesRequest

def keep_out(kind, name):
    method = getattr(kind, name)

    def elsewhere(*given, **more):
        short = name == "tokenize" and len(given[1]) < 2
        assert short or threading.current_thread() is not threading.main_thread(), name
        return method(*given, **more)

    setattr(kind, name, elsewhere)

keep_out(Vocabulary, "tokenize")
keep_out(MarkedText, "rstrip")
keep_out(Conversation, "openai_messages")
keep_out(ResponsesRequest, "messages")
start(host(lambda _: load()))
"""


def test_no_text_is_converted_in_the_event_loop() -> None:
    mixed = {"prompt": ["Once", 5], "n_predict": 1, "logit_bias": [["Hi", 1]]}
    echoed = {"prompt": "Once", "max_tokens": 1, "echo": True, "logprobs": 1}
    with serving_program(IN_THREADS) as server:
        for path, body in (*BODIES.items(), ("/completion", mixed), ("/v1/completions", echoed)):
            assert server.post(path, body).status in (200, 501), path


def test_streams_report_a_failure_in_their_format() -> None:
    with serving_program(FAILING) as server:
        claude, others = "/v1/messages", ("/messages", "/v1/completions", "/v1/responses")
        for path in (CHAT, claude, *others, "/api/chat"):
            body = BODIES.get(path, BODIES[claude])
            *_, last = server.post(path, {**body, "stream": True}).events
            error = last.get("response", last)["error"]
            assert "not enough memory" in (error if isinstance(error, str) else error["message"])
            if path == "/v1/responses":  # the type and code are those that OpenAI's clients know
                assert (last["type"], error["code"]) == ("response.failed", "server_error")


SLOW = """
def opener(progress):
    progress(0.25)
    while not pathlib.Path(sys.argv[1]).exists():
        time.sleep(0.01)
        progress(0.25)
    return load(progress=progress)

start(host(opener))
"""


def test_it_reports_progress_while_the_model_is_loading(tmp_path: Path) -> None:
    go = tmp_path / "go"
    with serving_program(SLOW, str(go), wait=False) as server:
        wait_until(lambda: (server.get("/health").json["error"]["progress"]) == 0.25, "it begins")
        loading = server.get("/health")
        assert (loading.status, loading.headers["retry-after"]) == (503, "1")
        assert server.get("/v1/models").status == 503
        assert server.post("/v1/completions", {"prompt": "x"}).status == 503
        go.touch()
        server.wait_until_healthy()
        assert server.get("/health").json == {"status": "ok"}
        assert server.post("/v1/completions", {"prompt": "x", "max_tokens": 2}).status == 200
    for begun in (False, True):
        with serving_program(SLOW, str(tmp_path / "never"), wait=False) as server:
            if begun:
                wait_until(lambda: "progress" in server.get("/health").json["error"], "it begins")
            server.process.terminate()
            assert server.process.wait(PATIENCE) == 0, "it stops while it loads"


def test_it_stops_while_llama_cpp_is_measured(kernels: None) -> None:
    program = "from localspec.llama import time_ratio as it; it.ROUNDS = it.MIN_ROUNDS = 1 << 60\n"
    program += "start(host(lambda _: load()))"
    with serving_program(program, wait=False) as server:
        wait_until(lambda: server.get("/health").json["error"]["progress"] == 1.0, "it measures")
        server.process.terminate()
        assert server.process.wait(PATIENCE) == 0


def test_it_stops_without_the_rest_of_a_request() -> None:
    program = "start(host(lambda _: load()), drain=3600.0, body_timeout=3600.0)"
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n"
    with (
        serving_program(program) as server,
        socket.create_connection(("127.0.0.1", server.port)) as connection,
    ):
        connection.sendall(head + b"Content-Length: 100\r\n\r\n")
        assert b"100 Continue" in connection.recv(1000)
        connection.sendall(b"{")
        server.process.terminate()
        assert server.process.wait(PATIENCE) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signal_waits_for_running_answers(tmp_path: Path, number: signal.Signals) -> None:
    with serving(tmp_path, "-c", "2048", "-t", "1") as server:
        with ThreadPoolExecutor() as pool:
            asked = [pool.submit(server.post, "/v1/completions", LONG) for _ in range(2)]
            wait_until(lambda: server.metric("llamacpp:requests_deferred"), "somebody waits")
            server.process.send_signal(number)
        assert server.process.wait(PATIENCE) == 0, server.log.read_text()
        for reply in (one.result() for one in asked):
            assert reply.body.endswith(b"data: [DONE]\n\n")
            assert reply.events[-1]["choices"][0]["finish_reason"] == "length"
        assert is_closed(server)


def test_second_signal_cancels_running_answers(tmp_path: Path) -> None:
    with serving(tmp_path, "-c", "2048", "-t", "1") as server:
        with ThreadPoolExecutor() as pool:
            longer = {**LONG, "n": 8, "max_tokens": 1900}
            asked = pool.submit(server.post, "/v1/completions", longer)
            wait_until(lambda: not server.idle, "it is busy")
            server.process.send_signal(signal.SIGINT)
            wait_until(lambda: is_closed(server), "it takes no connections")
            assert server.process.poll() is None
            server.process.send_signal(signal.SIGINT)
            assert server.process.wait(PATIENCE) == 130
        assert isinstance(asked.exception(), httpx2.TransportError)


def test_answers_that_outlast_the_draining_are_cut_off() -> None:
    program = FAILING.replace("raise MemoryError", "await asyncio.sleep(3600.0)")
    with (
        serving_program(program.replace("load())", "load()), drain=1.0")) as server,
        server.send("/v1/completions", LONG) as asked,
    ):
        while b"data: " not in asked.recv(1000):
            pass
        server.process.terminate()
        assert server.process.wait(PATIENCE) == 1, "it does not look complete"
