"""A server that speaks and fails as llama-server does."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest

from localspec.bench import llama_server
from localspec.bench.samples import BenchPrompt, Question, Sample
from localspec.errors import NativeError, UsageError
from tests.bench.samples import executable, peer_setup

pytestmark = pytest.mark.nightly

PATIENCE = 600.0
"""Seconds, so many that a test which waited for them would not pass unseen."""

PROMPT = BenchPrompt("story-0", "story", "Once upon a time")

SERVER = """#!{python}
import json, os, sys, time
from http.server import BaseHTTPRequestHandler, HTTPServer

options = dict(zip(sys.argv, sys.argv[1:]))
mode = options.get("--mode", "")
if mode == "dies":
    print("0.00.001.000 E srv    load_model: failed to load model, 'x'")
    print("0.00.002.000 E srv  llama_server: exiting due to model loading error")
    sys.exit(3)
if mode == "silent":
    sys.exit(1)
variables = [name for name in os.environ if name.startswith("LLAMA_")]
health = 0

class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def reply(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        global health
        health += 1
        loading = mode == "loads forever" or health < 3
        self.reply(503 if loading else 200, {{}})

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if mode == "crashes":
            print("an error it survived", flush=True)
            print("GGML_ASSERT(n_tokens > 0) failed", flush=True)
            os._exit(134)
        if mode == "hangs":
            time.sleep(60)
        if mode == "refuses":
            error = {{"message": "request (9 tokens) exceeds the available context size"}}
            return self.reply(400, {{"error": error}})
        if mode == "is old":
            return self.reply(200, {{"content": "", "tokens": []}})
        n = request["n_predict"]
        timings = {{"predicted_n": n, "predicted_ms": 500.0}}
        if "draft" in options.get("--spec-type", ""):
            timings |= {{"draft_n": 12, "draft_n_accepted": 4}}
        self.reply(200, {{
            "content": json.dumps([os.getpid(), sys.argv[1:], request, variables]),
            "tokens": list(range(n)),
            "stop_type": "eos" if mode == "stops" else "limit",
            "timings": timings,
        }})

HTTPServer(("127.0.0.1", int(options["--port"])), Handler).serve_forever()
"""


@pytest.fixture
def binary(tmp_path: Path) -> Path:
    return executable(tmp_path / "llama-server", SERVER.format(python=sys.executable))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "model.gguf").touch()
    return tmp_path / "model.gguf"


Servers = Callable[..., llama_server.LlamaServer]


@pytest.fixture
def servers(binary: Path, model: Path) -> Iterator[Servers]:
    with ExitStack() as stack:

        def made(*flags: str, gpu_layers: int = -1, **options: Any) -> llama_server.LlamaServer:
            said = {"tokenize": lambda text: [1, len(text)], "gpu_layers": gpu_layers}
            setup = peer_setup(model, draft=model, **said)
            arm = llama_server.LlamaServer(binary, "test", flags, setup, **options)
            stack.callback(arm.close)
            return arm

        yield made


def answer(arm: llama_server.LlamaServer) -> Sample:
    return arm.generate(Question(PROMPT, 0.8, 7, 9))


@pytest.fixture
def others() -> list[psutil.Process]:
    """Child processes of other fixtures."""
    return psutil.Process().children()


def children(others: list[psutil.Process]) -> list[psutil.Process]:
    return [each for each in psutil.Process().children() if each not in others]


@pytest.mark.parametrize(
    ("flags", "counts"),
    [
        (("--spec-type", "draft-simple"), (12, 4, 4)),
        (("--spec-type", "draft-simple", "--mode", "stops"), (12, 4, None)),  # the end cut a draft
        ((), (0, 0, 8)),
    ],
)
def test_sample_counts_tokens_after_the_first(
    servers: Servers, flags: tuple[str, ...], counts: tuple[int, int, int | None]
) -> None:
    sample = answer(servers(*flags))
    assert (sample.tokens, sample.seconds, sample.tested) == (8, 0.5, None)
    assert (sample.drafted, sample.accepted, sample.passes) == counts
    assert sample.token_ids == tuple(range(9))


def test_the_request(servers: Servers, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_ARG_N_PREDICT", "1")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    arm = servers("--spec-type", "draft-simple", gpu_layers=0)
    _, arguments, request, variables = json.loads(answer(arm).text)
    sampling = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "seed": 7}
    always = {"cache_prompt": False, "return_tokens": True}
    assert request == {"prompt": [1, 16], "n_predict": 9} | sampling | always
    assert variables == []
    told = arm.command.split()
    assert told[0] == "llama-server"
    assert arguments[: len(told) - 1] == told[1:]
    wanted = {"-c": "256", "-t": "2", "-np": "1", "-ngl": "0", "--spec-draft-ngl": "0"}
    wanted |= {"--cache-ram": "0", "-m": str(model), "--spec-draft-model": str(model)}
    assert dict(pairwise(arguments)).items() >= wanted.items()


def test_close_ends_the_process(others: list[psutil.Process], servers: Servers) -> None:
    arm = servers()
    assert not children(others)
    arm.start()
    (process,) = children(others)
    arm.close()
    arm.close()
    assert not process.is_running()
    assert answer(arm).tokens == 8  # and starts again when it is asked to


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        ("dies", r"exited while starting: srv    load_model: failed .*\(exit status 3\)"),
        ("silent", r"exited while starting: its log is empty \(exit status 1\)"),
        ("loads forever", r"was not ready after 0.5 seconds: its log is empty"),
        ("crashes", r"exited while answering: GGML_ASSERT\(n_tokens > 0\) failed \(exit .* 134\)"),
        ("hangs", r"did not answer within 1 seconds"),
        ("refuses", r"refused the prompt: request \(9 tokens\) exceeds the available context"),
        ("is old", r"answered without the expected figures \(KeyError\('timings'\)\)"),
    ],
)
def test_failures(others: list[psutil.Process], servers: Servers, mode: str, message: str) -> None:
    start = 0.5 if mode == "loads forever" else PATIENCE
    answered = 1.0 if mode == "hangs" else PATIENCE
    arm = servers("--mode", mode, start_timeout=start, answer_timeout=answered)
    with pytest.raises(NativeError, match=message):
        answer(arm)
    arm.close()
    assert not children(others)


def test_program_that_cannot_run(servers: Servers, binary: Path) -> None:
    no_program = servers()
    binary.chmod(0o600)
    with pytest.raises(UsageError, match="cannot be run: Permission denied"):
        no_program.start()


def test_configurations(binary: Path, model: Path) -> None:
    known = llama_server.SERVER_CONFIGURATIONS
    assert len(known) == 25
    assert {"plain", "draft 1", "draft 3 (default)", "draft 16", "ngram-mod"} < known.keys()
    assert {"ngram-cache", "draft 3 + ngram-mod"} < known.keys()
    flags = "--spec-type draft-simple --spec-draft-n-max 7 --spec-draft-p-min 0.4"
    assert " ".join(known["draft 7 p-min 0.4"]) == flags
    with pytest.raises(UsageError, match=r"no configuration 'best' here. Choose from plain, draft"):
        llama_server.require_configurations(["plain", "best"])
