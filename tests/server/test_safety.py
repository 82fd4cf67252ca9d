"""Access control, and protection against hostile clients."""

import json
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.server.bodies import CHAT, assistant, user
from tests.server.process import (
    PATIENCE,
    Running,
    module_server,
    serving,
    serving_program,
    wait_until,
)

pytestmark = pytest.mark.nightly

ASK = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}


def send_raw(server: Running, sent: bytes, *, timeout: float = PATIENCE) -> bytes:
    """Send bytes and return all that is received until the server closes or `timeout` passes."""
    with socket.create_connection(("127.0.0.1", server.port), timeout) as connection:
        connection.sendall(sent)
        return read_to_end(connection)


def read_to_end(connection: socket.socket) -> bytes:
    received = bytearray()
    with suppress(TimeoutError, ConnectionResetError):
        while part := connection.recv(1 << 20):
            received += part
    return bytes(received)


CLOSE = b"Connection: close, upgrade\r\nUpgrade: h2c\r\n\r\n"  # as Java's clients offer


def get_status(server: Running, host: str) -> int:
    return int(send_raw(server, server.head("GET /props", host) + CLOSE).split()[1])


def test_empty_lines_before_a_request(server: Running) -> None:
    answers, body = bytearray(), b'Content-Length: 16\r\n\r\n{"content":"ok"}'
    with socket.create_connection(("127.0.0.1", server.port), PATIENCE) as connection:
        for end in (b"\r\n", b"\r\n\n\r"):
            connection.sendall(end[::-1] + server.head("POST /tokenize") + body + end)
            while not answers.endswith(b"]}") and (more := connection.recv(1 << 16)):
                answers += more
            answers += b"."
        connection.sendall(b"\n")
        connection.sendall((server.head() + b"\r\n") * 2 + b"\n" + server.head() + CLOSE)
        answers += read_to_end(connection)
    assert answers.count(b"HTTP/1.1 200") == 5


@pytest.mark.parametrize(
    "key",
    ["", "Bearer", "Bearer wrong", "Bearer sk-of-the-test", "Basic sk-of-the-tests",
     "sk-of-the-tests", "Bearer \u00fcber", None],
)  # fmt: skip
@pytest.mark.parametrize("path", [CHAT, "/metrics", "/slots", "/no-such-path"])
def test_requests_without_the_key_are_refused(server: Running, key: str | None, path: str) -> None:
    headers = {"Authorization": (key or "").encode().decode("latin-1")}
    headers |= {"X-Api-Key": "wrong"} if key is None else {}
    reply = server.request("POST" if path == CHAT else "GET", path, headers=headers)
    error = reply.json["error"]
    assert (reply.status, error["type"]) == (401, "authentication_error")
    assert error["code"] == "invalid_api_key"


def test_half_closed_connections_get_their_answer(server: Running) -> None:
    with server.send("/v1/completions", {"prompt": "A fox", "max_tokens": 30}) as connection:
        connection.shutdown(socket.SHUT_WR)
        assert b'"finish_reason":"length"' in read_to_end(connection)


def test_key_in_either_header(server: Running) -> None:
    key = server.key or ""
    assert server.get("/props").status == 200
    assert server.get("/props", headers={"Authorization": "", "X-Api-Key": key}).status == 200
    both = {"Authorization": "Bearer of-another", "X-Api-Key": key}  # as Claude Code
    assert server.get("/props", headers=both).status == 200


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]", "192.168.1.20", "LOCALHOST"])
def test_local_host_names_are_allowed(server: Running, host: str) -> None:
    assert get_status(server, host) == 200
    assert get_status(server, f"{host}:{server.port}") == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "localhost.evil.example", "",
     "localhost@evil.example", "evil.example/localhost", "[::1", "localhost:port", "127.1.evil"],
)  # fmt: skip
def test_foreign_host_names_are_refused(server: Running, host: str) -> None:
    """DNS rebinding: the request carries the host name of the attacking page."""
    assert get_status(server, host) == 403


@pytest.mark.parametrize(
    ("target", "version", "host", "status"),
    [
        ("http://localhost/health", "1.1", "Host: localhost", 200),
        ("HTTP://127.0.0.1:8080/v1/health", "1.1", "Host: localhost", 200),
        ("http://evil.example/health", "1.1", "Host: localhost", 403),
        ("http://localhost/health", "1.1", "Host: evil.example", 403),
        ("http://localhost/props", "1.1", "Host: localhost", 401),
        ("/health", "1.1", "Host: localhost\r\nHost: evil.example", 400),
        ("/health", "1.0", "X: no host", 200),
        ("//v1//health/", "1.1", "Host: localhost", 200),
        ("//props/", "1.1", "Host: localhost", 401),
    ],
)
def test_request_targets(
    server: Running, target: str, version: str, host: str, status: int
) -> None:
    sent = f"GET {target} HTTP/{version}\r\n{host}\r\n".encode() + CLOSE
    assert send_raw(server, sent).split()[1] == str(status).encode()


@pytest.mark.parametrize(
    "origin",
    ["https://evil.example", "http://localhost:1", "null", "http://127.0.0.1", "file://", "x"],
)
def test_foreign_origins_are_refused(server: Running, origin: str) -> None:
    reply = server.post(CHAT, ASK, headers={"Origin": origin})
    assert reply.status == 403
    assert "access-control-allow-origin" not in reply.headers
    preflight = server.request("OPTIONS", CHAT, headers={"Origin": origin})
    assert preflight.status == 403
    assert server.post(CHAT, ASK, headers={"Origin": server.address}).status == 200


open_server = module_server(
    *("-c", "2048", "-t", "1", "--drafter", "none", "--max-queue", "1", "-v"),
    *("--cors", "http://page.example", "--allowed-host", "box.example", "--api-prefix", "/llm"),
)
"""Without a key, for one page and one more name, also below a path; a short queue."""


def test_allowed_origin(open_server: Running) -> None:
    origin = {"Origin": "http://page.example"}
    private = "access-control-allow-private-network"
    assert private not in open_server.request("OPTIONS", CHAT, headers=origin).headers
    asks = {"Access-Control-Request-Private-Network": "true"}
    assert private not in open_server.request("OPTIONS", CHAT, headers=asks).headers
    preflight = open_server.request("OPTIONS", CHAT, headers=origin | asks)
    assert (preflight.status, preflight.headers[private]) == (200, "true")
    assert preflight.headers["access-control-allow-origin"] == "http://page.example"
    assert "POST" in preflight.headers["access-control-allow-methods"]
    asks = {"Access-Control-Request-Headers": "authorization,x-mine"}
    told = open_server.request("OPTIONS", CHAT, headers=origin | asks).headers
    assert told["access-control-allow-headers"] == "authorization,x-mine"  # "*" is without them
    assert told["access-control-allow-credentials"] == "true"
    reply = open_server.post(CHAT, ASK, headers=origin)
    assert reply.status == 200
    assert reply.headers["access-control-allow-origin"] == "http://page.example"
    assert open_server.post(CHAT, ASK, headers={"Origin": "http://other.example"}).status == 403


def test_allowed_host_and_prefix(open_server: Running) -> None:
    hosts = {"box.example": 200, "host.docker.internal": 200, "fox.example": 403}
    assert {host: get_status(open_server, host) for host in hosts} == hosts
    paths = ("/llm/v1/models", "/llm", "/models", "/llmv1/models", "/v1/v1/models")
    found = [open_server.get(path) for path in paths]
    assert [reply.status for reply in found] == [200, 200, 200, 404, 404]
    assert b"There is no endpoint /v1/v1/models" in found[-1].body


def test_full_queue_is_refused(open_server: Running) -> None:
    eight = open_server.post("/v1/completions", {"prompt": "x", "n": 8, "max_tokens": 1})
    assert "room for 2 answers" in eight.error(400)  # a client would ask again and again
    long = {"prompt": "Once", "n": 2, "max_tokens": 1500, "ignore_eos": True, "stream": True}
    with open_server.send("/v1/completions", long):
        wait_until(lambda: open_server.metric("llamacpp:requests_deferred"), "somebody waits")
        refused = open_server.post("/v1/completions", {"prompt": "x", "max_tokens": 1})
        assert "Try again" in refused.error(429)
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        assert refused.json["error"]["type"] == "rate_limit_error"
        assert open_server.get("/slots?fail_on_no_slot=1").status == 503
    open_server.wait_until_idle()
    assert open_server.get("/slots?fail_on_no_slot=1").status == 200
    assert open_server.post("/v1/completions", {"prompt": "x", "max_tokens": 1}).status == 200


HOSTILE: dict[str, bytes] = {
    "nothing": b"",
    "no object": b"[1, 2]",
    "not UTF-8": b'{"messages": "\xff\xfe"}',
    "NaN": b'{"messages": [{"role": "user", "content": "x"}], "temperature": NaN}',
    "infinite": b'{"messages": [{"role": "user", "content": "x"}], "temperature": 1e999}',
    "a long number": b'{"messages": [], "seed": ' + b"9" * 10_000 + b"}",
    "the other half in a key": rb'{"\udfff": 1, "messages": []}',
    "deep": b'{"messages": ' + b"[" * 5_000 + b"]" * 5_000 + b"}",
    "very deep": b'{"messages": ' + b"[" * 500_000 + b"]" * 500_000 + b"}",
    "10 MB of text": b'{"messages": [{"role": "user", "content": "' + b"x" * 10_000_000 + b'"}]}',
    "a million values": b'{"messages": [' + b"1," * 1_000_000 + b"1]}",
}


def body_with(**fields: Any) -> bytes:
    return json.dumps({**ASK, **fields}).encode()


def schema(value: Any) -> bytes:
    return body_with(
        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": value}}
    )


HOSTILE |= {
    "thousands of messages": body_with(messages=[user("x"), assistant("x")] * 8_000 + [user("x")]),
    "thousands of stops": body_with(stop=["x"] * 5_000),
    "a stop that is long": body_with(stop="x" * 100_000),
    "bias of everything": body_with(logit_bias={str(i): 1 for i in range(20_000)}),
    "bias beyond the vocabulary": body_with(logit_bias={"123456789": 1}),
    "bias of a strange key": body_with(logit_bias={"\u0661": 1}),
    "hundreds of tools": body_with(
        tools=[{"type": "function", "function": {"name": f"f{i}"}} for i in range(500)]
    ),
    "a schema that is none": schema({"type": "nonsense"}),
    "a reference to nowhere": schema({"$ref": "#/$defs/nowhere"}),
    "a reference elsewhere": schema({"$ref": "https://evil.example/schema.json"}),
    "a schema of itself": schema({"$ref": "#"}),
    "a circle of references": schema(
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}
    ),
    "a pattern that is a number": schema({"type": "string", "pattern": 3}),
    "a long pattern": schema({"type": "string", "pattern": "^" + "(a|b)" * 10_000 + "$"}),
    "parts beyond counting": schema({"anyOf": [{"const": i} for i in range(20_000)]}),
    "a grammar that is none": body_with(grammar="root ::= ((("),
    "a grammar of itself": body_with(grammar='root ::= root "a"'),
    "a grammar that is long": body_with(grammar="root ::= " + '"a"? ' * 20_000),
    "endless lines": body_with(grammar="\n" * 49_000 + "x"),
    "an endless comment": body_with(grammar="start: %json " + "#" * 49_000),
    "a grammar of many rules": body_with(
        grammar="start: r0\n" + "\n".join(f"r{i}: r{i + 1} | start" for i in range(3_000))
    ),
    "a grammar that refers on and on": body_with(
        grammar="start: %json "
        + json.dumps(
            {"$defs": {f"{i}": {"items": {"$ref": f"#/$defs/{i + 1}"}} for i in range(999)}}
        )
    ),
    "a regular expression that is none": body_with(regex="("),
    "a regular expression that is long": body_with(regex="a?" * 20_000),
    "a deep grammar": body_with(grammar="root ::= " + "(" * 10_000 + '"a"' + ")" * 10_000),
}


@pytest.mark.parametrize("half", [r"\ud800", r"\udfff", r"\ud800 x", r"\ud800\n", r"\udfff\ud800"])
def test_lone_surrogates_are_refused(server: Running, half: str) -> None:
    raw = b'{"content": "%s"}' % half.encode()
    error = server.post("/tokenize", None, raw=raw).error()
    assert "contains a lone surrogate" in error


SEEN = {"source": {"type": "base64", "data": "x"}, "type": "image"}


@pytest.mark.parametrize(
    ("path", "message", "name"),
    [
        (CHAT, {"content": [{"type": "image_url", "image_url": "x"}]}, "image_url"),
        ("/v1/responses", {"content": [{"type": "input_image"}]}, "input_image"),
        ("/v1/messages", {"content": [SEEN]}, "image"),
        ("/api/chat", {"content": "x", "images": ["x"]}, "images"),
    ],
)
def test_image_error_names_the_clients_field(
    server: Running, path: str, message: dict[str, Any], name: str
) -> None:
    messages = [{"role": "user", **message}]
    body = {"messages": messages, "input": messages, "max_tokens": 1}
    assert f"'{name}'" in server.post(path, body).error()


def test_many_control_tokens_are_refused_quickly(server: Running) -> None:
    before = server.processor_seconds
    assert "context size" in server.post("/completion", {"prompt": "<|end|>" * 100_000}).error()
    assert server.processor_seconds - before < 10


TREE = {"type": "object", "properties": {"left": {"$ref": "#/$defs/tree"}}}
BACKTRACKING = ("^(a+)+$", "^(a|aa)+$", "^(a*)*b$", "^(.*)*$", "^([a-z]+)*x$")
LARGE = {
    **{one: schema({"type": "string", "pattern": one}) for one in BACKTRACKING},
    "a tree": schema({"$ref": "#/$defs/tree", "$defs": {"tree": TREE}}),
    "a grammar that doubles": body_with(
        grammar="\n".join(f"r{i} ::= r{i + 1} r{i + 1} | r{i + 1}" for i in range(20))
        + '\nr20 ::= "a"?\nroot ::= r0'
    ),
    "a billion items": schema({"type": "array", "items": {}, "maxItems": 10**9}),
    "a billion characters": schema({"type": "string", "minLength": 10**9}),
    "counts that multiply": schema({"type": "string", "pattern": "^((a{99}){99}){99}$"}),
    "a pattern without end": schema({"type": "string", "pattern": "^a}$"}),
    "properties that are long": schema({"properties": {"x" * 5_000: {}}}),
}


@pytest.mark.parametrize("kind", [*HOSTILE, *LARGE])
def test_hostile_bodies_cost_little(server: Running, kind: str) -> None:
    before = server.processor_seconds
    reply = server.request("POST", CHAT, raw={**HOSTILE, **LARGE}[kind])
    assert reply.status in ([200] if kind in LARGE else range(400, 500)), reply.body[:300]
    assert kind in LARGE or reply.json["error"]["message"]
    assert len(reply.body) < 2_000
    assert server.processor_seconds - before < 10
    assert server.process.poll() is None


def test_oversized_content_length_is_refused(server: Running) -> None:
    sent = server.head(f"POST {CHAT}") + b"Content-Length: 99999999999999\r\n\r\n"
    assert send_raw(server, sent).split()[1] == b"413"


def test_endless_chunked_body(server: Running) -> None:
    with socket.create_connection(("127.0.0.1", server.port), PATIENCE) as connection:
        connection.sendall(server.head(f"POST {CHAT}") + b"Transfer-Encoding: chunked\r\n\r\n")
        chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
        received = b""
        with suppress(OSError):
            for _ in range(1000):
                connection.sendall(chunk)
        with suppress(OSError):
            received = connection.recv(65536)
    assert received.startswith(b"HTTP/1.1 413") or not received
    assert server.get("/health").status == 200


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00",
        b"GET /\r\n\r\n",
        b"\x00" * 1000,
        b"\x1b[2J HTTP/1.1\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 100_000,
    ],
    ids=["TLS", "no version", "zeros", "escape sequence", "long header"],
)
def test_invalid_http(server: Running, sent: bytes) -> None:
    reply = send_raw(server, sent + b"\r\n" + CLOSE, timeout=5)
    assert reply.split()[1:2] in ([b"400"], [b"431"], [])
    assert server.get("/health").status == 200


IMPATIENT = """
start(host(lambda progress: load(progress=progress)),
      header_timeout=0.5, body_timeout=0.5, write_timeout=0.5)
"""


@pytest.fixture(scope="module")
def impatient() -> Iterator[Running]:
    """A server with timeouts of half a second."""
    with serving_program(IMPATIENT) as running:
        yield running


@pytest.mark.parametrize(
    "begun",
    [
        b"",
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nGET /hea",
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{",
    ],
    ids=["silent", "half a head", "half a second head", "half a body"],
)
def test_slow_loris(impatient: Running, begun: bytes) -> None:
    with socket.create_connection(("127.0.0.1", impatient.port), PATIENCE) as connection:
        connection.sendall(begun)
        with suppress(OSError):
            for _ in range(round(PATIENCE / 0.05)):
                connection.sendall(b"x")
                time.sleep(0.05)
            pytest.fail("it is still open")
    assert impatient.get("/health").status == 200


def test_client_that_does_not_read_is_dropped(impatient: Running) -> None:
    wanted = {"prompt": "Once", "n_predict": 1500, "n_probs": 100, "ignore_eos": True}
    with impatient.send("/completion", {**wanted, "stream": True}, buffer=4096) as connection:
        wait_until(lambda: not impatient.idle, "it is busy")
        impatient.wait_until_idle()
        received = read_to_end(connection)
    assert received.startswith(b"HTTP/1.1 200")
    assert b'"stop":true' not in received, "all of it was sent"
    assert impatient.post("/v1/completions", {"prompt": "x", "max_tokens": 1}).status == 200


def test_log_escapes_requests_and_hides_secrets(server: Running) -> None:
    secret = "the-secret-of-this-prompt"
    for path in ("/\x1b]0;title\x07", "/%1b[2J%0aINFO forged", "/" + "x" * 3_000):
        send_raw(server, server.head(f"GET {path}") + CLOSE, timeout=5)
    server.post(CHAT, {"messages": [{"role": "user", "content": secret}], "max_tokens": 1})
    server.post(CHAT, {"messages": secret, secret: secret})
    log = server.log.read_text()
    assert "POST /v1/chat/completions 200" in log
    for hidden in ("\x1b", "\x07", "\nINFO forged", secret, server.key or "?", "pip"):
        assert hidden not in log
    assert max(map(len, log.splitlines())) < 2_000


def test_log_prompts(tmp_path: Path) -> None:
    with serving(tmp_path, "-v", "--log-prompts") as server:
        server.post("/v1/completions", {"prompt": "my \x1b[2J\n prompt", "max_tokens": 1})
        log = server.log.read_text()
    assert r'prompt: "my \u001b[2J\n prompt"' in log
    assert "\x1b" not in log
