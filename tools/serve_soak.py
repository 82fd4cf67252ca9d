"""Send thousands of concurrent requests; check for leaks and for answers to the wrong client.

    python -m tools.serve_soak [--requests 10000] [--clients 32] [--slice 1000]

The server is `localspec serve` with the built-in pair, four concurrent answers and a queue of 16. A
grammar allows each answer only a unique mark. The client leaves one in ten at a random moment; one
in twenty is malformed and must be refused. Clients that get 429 check Retry-After and retry. After
each slice all slots must be free; memory, descriptors and threads are printed.
"""

import argparse
import http.client
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import psutil

from localspec.bench.child import HOST, Child, free_port

SLOTS, QUEUE = 4, 16
PATIENCE = 300.0
LEFT, MALFORMED = 0.10, 0.05
KINDS = ("answered", "wrong", "left", "refused", "failed", "queue_full", "without_retry_after")
"""Ends of requests: with the mark, with something else, left by the client, refused as malformed,
anything else; and replies 429.
"""
BAD = (
    b"{",
    b"[]",
    b'{"prompt": 1}',
    b'{"prompt": "x", "temperature": "hot"}',
    b'{"prompt": "x", "max_tokens": -1.5}',
    b'{"prompt": "x", "grammar": "root ::= ("}',
    b'{"prompt": "x", "temperature": NaN}',
    b'{"prompt": "\xff"}',
    b"[" * 5000,
    b'{"prompt": "x", "stop": ["a", 1]}',
)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--requests", type=int, default=10_000)
    options.add_argument("--clients", type=int, default=32)
    options.add_argument("--slice", type=int, default=1000)
    options.add_argument("--seed", type=int, default=0)
    args = options.parse_args()
    totals: Counter[str] = Counter()
    port = free_port()
    with closing(start_server(port)) as child:
        process, address = psutil.Process(child.process.pid), f"{HOST}:{port}"
        child.wait_until_healthy(f"http://{address}", PATIENCE)
        soak(address, 200, args.clients, random.Random(-1), process)  # one-time allocations
        print(f"before: {json.dumps(resources(process))}", flush=True)
        for number in range(-(-args.requests // args.slice)):
            rng = random.Random(f"{args.seed}/{number}")
            found = soak(address, args.slice, args.clients, rng, process)
            totals.update(found)
            print(json.dumps(found), flush=True)
    bad = totals["wrong"] + totals["failed"] + totals["without_retry_after"]
    full = totals["queue_full"]
    print(f"{totals['requests']} requests, {bad} with wrong outcomes, {full} × 429")
    return 1 if bad or child.process.returncode else 0


def start_server(port: int) -> Child:
    command = [sys.executable, "-m", "localspec", "serve", "-m", "demo", "--port", str(port)]
    command += ["-c", "512", "-t", "1", "--parallel", str(SLOTS), "--max-queue", str(QUEUE)]
    return Child("localspec serve", command)


def get(address: str, path: str) -> tuple[int, bytes]:
    with closing(http.client.HTTPConnection(address, timeout=PATIENCE)) as connection:
        connection.request("GET", path)
        reply = connection.getresponse()
        return reply.status, reply.read()


def soak(
    address: str, count: int, clients: int, rng: random.Random, process: psutil.Process
) -> dict[str, int]:
    """Send requests; returns their outcomes, seconds, and the server's resources."""
    counts: Counter[str] = Counter(dict.fromkeys(KINDS, 0))
    started = time.monotonic()
    dice = [random.Random(f"{rng.random()}/{number}") for number in range(count)]
    with ThreadPoolExecutor(clients) as pool:
        for found in pool.map(lambda throw: Client(address, throw).one(), dice):
            counts.update(found)
    seconds = round(time.monotonic() - started)
    require_free(address)
    return {"requests": count, **counts, "seconds": seconds, **resources(process)}


def resources(process: psutil.Process) -> dict[str, int]:
    """What the server holds: bytes of memory, descriptors, threads."""
    memory, files = process.memory_info().rss, process.num_fds()
    return {"memory": memory, "descriptors": files, "threads": process.num_threads()}


def require_free(address: str) -> None:
    """Wait until every slot is free and the queue is empty."""
    deadline = time.monotonic() + PATIENCE
    while True:
        busy = sum(slot["is_processing"] for slot in json.loads(get(address, "/slots")[1]))
        lines = get(address, "/metrics")[1].decode().splitlines()
        waits = next(line for line in lines if line.startswith("llamacpp:requests_deferred "))
        if not busy and waits.endswith(" 0"):
            return
        if time.monotonic() > deadline:
            raise SystemExit(f"{busy} slots stay busy, {waits}")
        time.sleep(0.05)


class Client:
    def __init__(self, address: str, rng: random.Random) -> None:
        self._address = address
        self._rng = rng
        self._counts: Counter[str] = Counter()

    def one(self) -> Mapping[str, int]:
        kind = self._rng.random()
        try:
            if kind < MALFORMED:
                self._malformed()
            else:
                self._request(leave=kind < MALFORMED + LEFT)
        except (OSError, http.client.HTTPException, ValueError) as error:
            print(f"failed: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            self._counts["failed"] += 1
        return self._counts

    def _malformed(self) -> None:
        status, _ = self._post("/v1/completions", self._rng.choice(BAD))[:2]
        self._counts["refused" if 400 <= status < 500 else "failed"] += 1

    def _request(self, *, leave: bool) -> None:
        mark = f"{self._rng.getrandbits(40):010x}"
        stream = leave or self._rng.random() < 0.5
        body: dict[str, Any] = {"grammar": f'root ::= "{mark}"', "stream": stream}
        body["temperature"] = self._rng.choice([0.0, 1.0])
        path = self._rng.choice(["/completion", "/v1/completions", "/v1/chat/completions"])
        text = f"{mark} is the mark of this one. " * self._rng.randint(1, 6)
        if path.endswith("chat/completions"):
            body["messages"] = [{"role": "user", "content": text}]
        else:
            body["prompt"] = text
        data = json.dumps(body).encode()
        while True:
            status, reply, after = (self._leave if leave else self._post)(path, data)
            if status != 429:
                break
            self._counts["queue_full"] += 1
            self._counts["without_retry_after"] += after is None or int(after) < 1
            time.sleep(self._rng.uniform(0.05, 0.5))
        if leave:
            self._counts["left" if status == 200 else "failed"] += 1
        elif status != 200:
            raise ValueError(f"{status} {reply[:200]!r}")
        else:
            self._counts["answered" if answer_text(reply, stream) == mark else "wrong"] += 1

    def _post(self, path: str, data: bytes) -> tuple[int, bytes, str | None]:
        with closing(http.client.HTTPConnection(self._address, timeout=PATIENCE)) as connection:
            connection.request("POST", path, data, {"Content-Type": "application/json"})
            reply = connection.getresponse()
            return reply.status, reply.read(), reply.getheader("Retry-After")

    def _leave(self, path: str, data: bytes) -> tuple[int, bytes, str | None]:
        """Disconnect before the answer, or after a part of it."""
        with closing(http.client.HTTPConnection(self._address, timeout=PATIENCE)) as connection:
            connection.request("POST", path, data, {"Content-Type": "application/json"})
            if self._rng.random() < 0.3:
                time.sleep(self._rng.uniform(0.0, 0.05))
                return 200, b"", None
            reply = connection.getresponse()
            if reply.status == 200:
                reply.read(self._rng.randint(1, 200))
            return reply.status, b"", reply.getheader("Retry-After")


def answer_text(reply: bytes, stream: bool) -> str:
    """The text of an answer, in any of the protocols."""
    if not stream:
        return text_in(json.loads(reply))
    lines = reply.decode().splitlines()
    return "".join(text_in(json.loads(line[6:])) for line in lines if line.startswith("data: {"))


def text_in(one: Mapping[str, Any]) -> str:
    if "choices" not in one:
        return str(one.get("content") or "")
    if not one["choices"]:
        return ""
    choice = one["choices"][0]
    if "text" in choice:
        return str(choice["text"])
    return str((choice.get("message") or choice["delta"]).get("content") or "")


if __name__ == "__main__":
    sys.exit(main())
