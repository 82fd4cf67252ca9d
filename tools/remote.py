"""Measure drafting for a target on RPC servers, by the delay of the link to them.

    PYTHONPATH=build/rpc/python python -m tools.remote [MODEL.gguf | --scale A] [--ms 0 2]

Starts `ggml-rpc-server` processes on this machine (`python -m tools.native_build rpc` builds them),
each behind a link with a delay of `--ms` in each direction, and splits the target over them. Prints
the cost curve, T(n) ÷ T(1), and for alternating arms, after one uncounted round: tokens per second
and × plain.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import threading
import time
from asyncio import StreamReader, StreamWriter
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import localspec
from localspec import Drafting, Engine, ModelOptions, SamplingParams
from localspec.bench.child import free_port
from localspec.bench.scale import scaled_pair
from localspec.remote.servers import trouble
from tools.native_build import RPC_SERVER, program

PROMPTS = Path(__file__).parents[1] / "tests" / "data" / "prompts.jsonl"
GREEDY = SamplingParams(temperature=0)
ARMS = {
    "plain": Drafting(drafter="none"),
    "auto": Drafting(),
}
SIZES = (1, 2, 3, 4, 6, 8, 12, 16)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("model", nargs="?")
    options.add_argument("--draft", default="auto")
    options.add_argument("--scale", help="a pair of localspec.bench.scale, instead of a model")
    options.add_argument("--ms", nargs="+", type=float, default=[0.0, 2.0])
    options.add_argument("--servers", type=int, default=2)
    options.add_argument("--prompts", type=int, default=4)
    options.add_argument("--tokens", type=int, default=64)
    options.add_argument("--draft-threads", type=int, default=1)
    args = options.parse_args()
    prompts = [json.loads(line)["prompt"] for line in PROMPTS.read_text().splitlines()]
    pair = (args.model, args.draft) if args.scale is None else scaled_pair(args.scale)
    for delay in args.ms:
        with servers(args.servers, delay / 1000) as addresses:
            model = ModelOptions(
                context=1024, rpc=addresses, draft_threads=args.draft_threads, threads=1
            )
            with localspec.load(pair[0], draft=pair[1], options=model) as engine:
                measure(engine, delay, prompts[: args.prompts], args.tokens)


def measure(engine: Engine, delay: float, prompts: Sequence[str], tokens: int) -> None:
    """Run all arms over all prompts with rotating order, after one uncounted round."""
    speeds: dict[str, list[float]] = {name: [] for name in ARMS}
    for turn, prompt in enumerate([prompts[0], *prompts]):
        for place in range(len(ARMS)):
            name = [*ARMS][(place + turn) % len(ARMS)]
            answer = engine.stream(
                prompt, max_tokens=tokens, sampling=GREEDY, drafting=ARMS[name], reuse=False
            ).completion()
            if turn:
                speeds[name].append(answer.stats.tokens_per_second)
    curve = engine.profile.target
    one = curve.seconds(1, 64)
    cells = "  ".join(f"T({n}) {curve.seconds(n, 64) / one:.2f}" for n in SIZES[1:])
    print(f"{delay:g} ms: T(1) {1000 * one:.1f} ms  {cells}", flush=True)
    for name, found in speeds.items():
        ratio = median(speed / plain for speed, plain in zip(found, speeds["plain"], strict=True))
        print(f"{name:>12}{median(found):8.1f} tok/s{ratio:9.2f} × plain", flush=True)


@contextmanager
def servers(count: int, delay: float = 0.0) -> Iterator[tuple[str, ...]]:
    """Addresses of `count` RPC servers with one thread each, behind links that delay by `delay`
    seconds in each direction."""
    with ExitStack() as opened:
        addresses = []
        for _ in range(count):
            port = free_port()
            opened.enter_context(running(port))
            if delay:
                link = DelayedLink(("127.0.0.1", port), delay)
                port = opened.enter_context(closing(link)).port
            addresses.append(f"127.0.0.1:{port}")
        yield tuple(addresses)


@contextmanager
def running(port: int) -> Iterator[subprocess.Popen[bytes]]:
    """An RPC server that is listening."""
    process = subprocess.Popen(
        [str(program(RPC_SERVER)), "--host", "127.0.0.1", "--port", str(port), "--threads", "1"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        while (why := trouble(f"127.0.0.1:{port}")) is not None:
            if process.poll() is not None:
                raise OSError(f"ggml-rpc-server ended: {why[0]}")
            time.sleep(0.02)
        yield process
    finally:
        process.kill()
        process.wait()


class DelayedLink:
    """A TCP proxy on this machine that delays data in each direction by `seconds`, as a network
    link does. `port`: 0 for a free one."""

    def __init__(self, to: tuple[str, int], seconds: float, port: int = 0) -> None:
        self._to, self._seconds, self._loop = to, seconds, asyncio.new_event_loop()
        self._open: list[StreamWriter] = []
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server = self._run(asyncio.start_server(self._accept, "127.0.0.1", port))
        self.port: int = self._server.sockets[0].getsockname()[1]

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def __enter__(self) -> DelayedLink:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Cut all connections, and accept no more."""
        self._run(self._cut())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    async def _cut(self) -> None:
        self._server.close()
        for one in self._open:
            one.transport.abort()

    async def _accept(self, here: StreamReader, answers: StreamWriter) -> None:
        self._open.append(answers)
        try:
            there, requests = await asyncio.open_connection(*self._to)
        except OSError:
            answers.close()
            return
        self._open.append(requests)
        await asyncio.gather(self._forward(here, requests), self._forward(there, answers))

    async def _forward(self, source: StreamReader, sink: StreamWriter) -> None:
        piece = b"."
        while piece:
            try:
                piece = await source.read(1 << 18)
            except OSError:
                piece = b""
            act = (sink.write, piece) if piece else (sink.close,)
            self._loop.call_later(self._seconds, *act)


if __name__ == "__main__":
    main()
