"""Runs `localspec serve` in a separate process, on a free port."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest

PATIENCE = 60.0
"""Seconds, many times what any of it takes."""


@dataclass(frozen=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[Any]:
        """The JSON of server-sent events, or of lines."""
        lines = (line.removeprefix("data: ") for line in self.body.decode().splitlines())
        return [json.loads(line) for line in lines if line.startswith("{")]

    def error(self, status: int = 400) -> str:
        """The message of an error that has this status."""
        assert self.status == status, self.body
        error = self.json["error"]
        return str(error["message"] if isinstance(error, dict) else error)


@dataclass
class Running:
    process: subprocess.Popen[str]
    address: str
    log: Path
    key: str | None = None

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        raw: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        data = raw if raw is not None else None if body is None else json.dumps(body).encode()
        sent = {"Content-Type": "application/json", **self.authorization, **(headers or {})}
        reply = httpx2.request(
            method,
            self.address + path,
            content=data,
            headers=[(name.encode(), text.encode("latin-1")) for name, text in sent.items()],
            timeout=PATIENCE,
            trust_env=False,
        )
        return Reply(reply.status_code, reply.headers, reply.content)

    @property
    def authorization(self) -> dict[str, str]:
        return {} if self.key is None else {"Authorization": f"Bearer {self.key}"}

    def post(self, path: str, body: Any, **more: Any) -> Reply:
        return self.request("POST", path, body, **more)

    def get(self, path: str, **more: Any) -> Reply:
        return self.request("GET", path, **more)

    def send(self, path: str, body: Any, *, buffer: int | None = None) -> socket.socket:
        """Send a request; return its connection, with a receive buffer of `buffer` bytes."""
        connection = socket.socket()
        if buffer is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        connection.settimeout(PATIENCE)
        connection.connect(("127.0.0.1", self.port))
        data = json.dumps(body).encode()
        length = f"Content-Length: {len(data)}\r\n\r\n"
        connection.sendall(self.head(f"POST {path}") + length.encode() + data)
        return connection

    def head(self, request: str = "GET /health", host: str = "localhost") -> bytes:
        """The beginning of a request: its head without the empty line."""
        lines = (f"{request} HTTP/1.1", f"Host: {host}", f"Authorization: Bearer {self.key}", "")
        return "\r\n".join(lines).encode("latin-1")

    def metric(self, name: str) -> float:
        """The sum of a metric of `/metrics`, over its labels."""
        lines = self.get("/metrics").body.decode().splitlines()
        values = [line.rpartition(" ")[2] for line in lines if re.match(rf"{name}[ {{]", line)]
        return sum(map(float, values))

    def states(self, count: int) -> list[Any]:
        """The first `count` states of the page's event stream."""
        url, headers = f"{self.address}/events", self.authorization
        with httpx2.stream("GET", url, headers=headers, timeout=PATIENCE) as answer:
            lines = (line for line in answer.iter_lines() if line.startswith("data: "))
            return [json.loads(line[6:]) for line in islice(lines, count)]

    @property
    def idle(self) -> bool:
        busy = any(slot["is_processing"] for slot in self.get("/slots").json)
        return not busy and self.metric("llamacpp:requests_deferred") == 0

    @property
    def processor_seconds(self) -> float:
        """CPU seconds of the process, which do not depend on other load."""
        used = psutil.Process(self.process.pid).cpu_times()
        return float(used.user + used.system)

    def wait_until_idle(self) -> None:
        wait_until(lambda: self.idle, "every slot is free")

    def is_healthy(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        return self.get("/health").status == 200

    def wait_until_healthy(self) -> None:
        wait_until(self.is_healthy, "the model is loaded")


def wait_until(holds: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(0.01)


@contextmanager
def serving(
    folder: Path, *arguments: str, key: str | None = None, wait: bool = True, **environment: str
) -> Iterator[Running]:
    """Run a server on a free port, with standard error in a file; stop it afterwards."""
    if key is not None:
        environment["LOCALSPEC_API_KEY"] = key
    command = ("-m", "localspec", "serve", "--port", "0", *arguments)
    with _started(command, folder / "server.log", environment, key=key, wait=wait) as running:
        yield running


def module_server(*arguments: str, key: str | None = None) -> Any:
    """A fixture: one server for all tests of a module."""

    @pytest.fixture(scope="module")
    def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
        with serving(tmp_path_factory.mktemp("server"), *arguments, key=key) as running:
            yield running

    return server


PROGRAM = """
import asyncio, pathlib, sys, time
from localspec import SamplingParams, load
from localspec.server.model_hosts import ModelHost
from localspec.server.server_options import ServerOptions
from localspec.server.running import serve

def host(opener, path="tale.gguf", **options):
    path = pathlib.Path(path)
    return ModelHost(opener=opener, name=path.stem, path=path, **options)

def start(*hosts, **options):
    sys.exit(not serve(ServerOptions(port=0, **options), hosts, SamplingParams(temperature=0.0),
             listening=lambda address: print(address, flush=True), ready=lambda engine: None))
"""


@contextmanager
def serving_program(program: str, *arguments: str, wait: bool = True) -> Iterator[Running]:
    """Run a Python program that starts a server by `start(*hosts, **options)`, which exits."""
    with _started(("-c", PROGRAM + program, *arguments), Path(os.devnull), {}, wait=wait) as server:
        yield server


@contextmanager
def _started(
    command: tuple[str, ...],
    log: Path,
    environment: Mapping[str, str],
    *,
    key: str | None = None,
    wait: bool,
) -> Iterator[Running]:
    with log.open("w") as errors:
        streams: Any = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": errors}
        variables = {**os.environ, **environment}
        process = subprocess.Popen([sys.executable, *command], env=variables, text=True, **streams)
    assert process.stdout is not None
    try:
        found = re.search(r"http://\S+", process.stdout.readline())
        assert found is not None, log.read_text()
        server = Running(process, found[0], log, key)
        if wait:
            server.wait_until_healthy()
        yield server
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
