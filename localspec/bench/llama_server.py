"""llama.cpp's own server as an arm, plain and with each of its ways to speculate."""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any

from localspec.bench.samples import Arm, BenchPrompt, Sample
from localspec.errors import NativeError, UsageError


@dataclass(frozen=True, slots=True)
class ServerConfiguration:
    """One way; `flags` are those besides models, context and threads."""

    name: str
    flags: tuple[str, ...]
    needs_draft: bool = False


_DEFAULT_DEPTH = 3
_NGRAM = ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache")


def _draft(depth: int, p_min: float | None = None, ngram: str | None = None) -> ServerConfiguration:
    types = "draft-simple" if ngram is None else f"draft-simple,{ngram}"
    flags = ["--spec-type", types, "--spec-draft-n-max", str(depth)]
    name = f"draft {depth}"
    if p_min is not None:
        flags += ["--spec-draft-p-min", f"{p_min:g}"]
        name += f" p-min {p_min:g}"
    elif depth == _DEFAULT_DEPTH and ngram is None:
        name += " (default)"
    if ngram is not None:
        # The n-gram goes first, whatever the order, and the model where it finds nothing.
        name += f" + {ngram}"
    return ServerConfiguration(name, tuple(flags), needs_draft=True)


SERVER_CONFIGURATIONS: tuple[ServerConfiguration, ...] = (
    ServerConfiguration("plain", ("--spec-type", "none")),
    *(_draft(depth) for depth in (*range(1, 9), 16)),
    *(_draft(depth, p_min) for depth in (7, 16) for p_min in (0.4, 0.6)),
    # ngram-mod is what --spec-default stands for.
    *(ServerConfiguration(n, ("--spec-type", n)) for n in _NGRAM),
    *(_draft(_DEFAULT_DEPTH, ngram=ngram) for ngram in _NGRAM),
    _draft(7, 0.4, "ngram-mod"),
)


def server_configurations(names: Sequence[str] | None = None) -> list[ServerConfiguration]:
    """The named configurations, None for all. Raises UsageError: an unknown name."""
    known = {configuration.name: configuration for configuration in SERVER_CONFIGURATIONS}
    if names is None:
        return list(SERVER_CONFIGURATIONS)
    for name in names:
        if name not in known:
            raise UsageError(
                f"llama-server has no configuration '{name}' here. Choose from {', '.join(known)}."
            )
    return [known[name] for name in names]


_HOST = "127.0.0.1"
_POLL = 0.02
_STOP_TIMEOUT = 5.0
_STAMP = re.compile(r"^[\d.]+ [A-Z] ")
_ERROR = re.compile(r"error|fail|assert|abort|fatal|cannot|couldn't", re.IGNORECASE)

# A proxy of the environment has no business with a server of ours.
_open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open


class LlamaServer(Arm):
    """Started by the first answer, or by `start`. `tokenize`: raw text to token ids, BOS included;
    `weight_buffers`: whether the CPU's own weight layouts work; `slots`: answers at once, each with
    `context` tokens; `start_timeout`, `answer_timeout`: seconds."""

    def __init__(
        self,
        binary: Path,
        target: Path,
        draft: Path | None,
        configuration: ServerConfiguration,
        *,
        tokenize: Callable[[str], list[int]],
        threads: int,
        context: int,
        gpu_layers: int = -1,
        weight_buffers: bool = True,
        slots: int = 1,
        start_timeout: float = 120.0,
        answer_timeout: float = 600.0,
    ) -> None:
        self.name = f"llama-server {configuration.name}"
        self.every_turn = configuration.name == "plain"
        command = ["-m", str(target), *configuration.flags]
        if configuration.needs_draft:
            command += ["--spec-draft-model", str(draft)]
        command += ["-c", str(slots * context), "-t", str(threads), "-np", str(slots)]
        if gpu_layers >= 0:
            command += ["-ngl", str(gpu_layers)]
            command += ["--spec-draft-ngl", str(gpu_layers)] if configuration.needs_draft else []
        if not weight_buffers:
            command.append("--no-repack")
        self.command = shlex.join([binary.name, *command])
        # Neither costs time within an answer: prompts saved for later ones, and web pages.
        command += ["--cache-ram", "0", "--no-webui"]
        self._program = [str(binary.resolve()), *command]
        self._start_timeout, self._answer_timeout = start_timeout, answer_timeout
        self._process: subprocess.Popen[bytes] | None = None
        self.log: Path | None = None
        self._address = ""
        self._tokenize = tokenize

    def generate(
        self, prompt: BenchPrompt, *, temperature: float, seed: int, max_tokens: int
    ) -> Sample:
        """Answer one prompt. Raises NativeError: the server does not start, refuses the prompt, or
        dies."""
        self.start()
        request = {
            "prompt": self._tokenize(prompt.text),
            "n_predict": max_tokens,
            "temperature": temperature,
            "top_k": 40,
            "top_p": 0.95,
            "min_p": 0.05,
            "seed": seed,
            "cache_prompt": False,
            "return_tokens": True,
        }
        try:
            reply = self._post(request)
        except BaseException:
            # It would still be generating, and the next answer would wait for it.
            self.close()
            raise
        return _sample(self.name, reply)

    def start(self) -> None:
        """Start it if it does not run, and wait until it is healthy. Raises LocalspecError."""
        if self._process is not None and self._process.poll() is None:
            return
        self.close()
        with (
            tempfile.NamedTemporaryFile(prefix="llama-server-", suffix=".log", delete=False) as log,
            socket.socket() as probe,
        ):
            self.log = Path(log.name)
            probe.bind((_HOST, 0))
            port = probe.getsockname()[1]
            probe.close()
            self._address = f"http://{_HOST}:{port}"
            environment = {n: v for n, v in os.environ.items() if not n.startswith("LLAMA_")}
            # Not in a session of its own: a terminal's signals reach the server too.
            try:
                self._process = subprocess.Popen(
                    [*self._program, "--host", _HOST, "--port", str(port)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=environment,
                )
            except OSError as error:
                self.close()
                raise UsageError(
                    f"{self._program[0]} cannot be run: {error.strerror}. "
                    "Name the llama-server program of a llama.cpp build."
                ) from None
        try:
            self._wait_until_healthy()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the process; may be repeated."""
        process, self._process = self._process, None
        if process is not None:
            end(process)
        if self.log is not None:
            self.log.unlink(missing_ok=True)
            self.log = None

    def _wait_until_healthy(self) -> None:
        assert self._process is not None
        give_up = time.monotonic() + self._start_timeout
        while True:
            if self._process.poll() is not None:
                raise NativeError(
                    f"{self.name} ended while it started: {self._last_words(first=True)}"
                )
            try:
                with _open(f"{self._address}/health", timeout=5):
                    return
            except (OSError, HTTPException):
                pass  # not listening yet, or 503: loading
            if time.monotonic() > give_up:
                raise NativeError(
                    f"{self.name} was not ready after {self._start_timeout:g} seconds: "
                    f"{self._last_words(first=True)}"
                )
            time.sleep(_POLL)

    def _post(self, body: dict[str, Any]) -> dict[str, Any]:
        """Send a request and wait for the reply. Raises NativeError: the server refuses it, takes
        longer than `answer_timeout`, or dies."""
        assert self._process is not None
        request = urllib.request.Request(
            f"{self._address}/completion",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        try:
            with _open(request, timeout=self._answer_timeout) as response:
                reply: dict[str, Any] = json.load(response)
                return reply
        except urllib.error.HTTPError as error:
            raise NativeError(f"{self.name} refused the prompt: {_message(error)}.") from None
        except TimeoutError:
            raise NativeError(
                f"{self.name} did not answer within {self._answer_timeout:g} seconds. "
                "Ask for fewer tokens, or take a smaller model."
            ) from None
        except (OSError, HTTPException, ValueError) as error:
            # The connection ends a moment before the process does.
            try:
                self._process.wait(1)
            except subprocess.TimeoutExpired:
                raise NativeError(
                    f"{self.name} broke off its answer: {error or type(error).__name__}"
                ) from None
            raise NativeError(
                f"{self.name} died while it answered: {self._last_words(first=False)}"
            ) from None

    def _last_words(self, *, first: bool) -> str:
        """The most useful line of the log: the `first` or last error if there is one.

        At the start the first error causes the others; later, earlier ones were survived.
        """
        assert self.log is not None
        text = self.log.read_text(encoding="utf-8", errors="replace")
        lines = [_STAMP.sub("", line).strip() for line in text.splitlines() if line.strip()]
        errors = [line for line in lines if _ERROR.search(line)]
        found = errors or lines or ["its log is empty"]
        line = found[0 if errors and first else -1]
        status = self._process.poll() if self._process is not None else None
        return line if status is None else f"{line} (exit status {status})"


def _sample(arm: str, reply: dict[str, Any]) -> Sample:
    """A reply as a sample.

    `predicted_n` counts an end-of-generation token too; `predicted_ms` runs from the first token.
    """
    try:
        timings = reply["timings"]
        tokens = max(0, int(timings["predicted_n"]) - 1)
        seconds = float(timings["predicted_ms"]) / 1e3 if tokens else 0.0
        # Left out where nothing was drafted.
        drafted = int(timings.get("draft_n", 0))
        accepted = int(timings.get("draft_n_accepted", 0))
        ids = tuple(int(token) for token in reply["tokens"])
        text = str(reply["content"])
    except (KeyError, TypeError, ValueError) as error:
        raise NativeError(
            f"{arm} answered without the expected figures ({error!r}). Take the llama-server of "
            "the llama.cpp that llama-cpp-python contains."
        ) from None
    # A pass yields the accepted tokens and one more, except where an end-of-generation token cut
    # the last one short.
    whole = drafted == 0 or reply.get("stop_type") == "limit"
    return Sample(
        tokens=tokens,
        seconds=seconds,
        passes=tokens - accepted if whole else None,
        drafted=drafted,
        accepted=accepted,
        text=text,
        token_ids=ids,
    )


def end(process: subprocess.Popen[Any]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _message(error: urllib.error.HTTPError) -> str:
    try:
        message = json.loads(error.read())["error"]["message"]
    except (OSError, ValueError, KeyError, TypeError):
        return f"HTTP status {error.code}"
    return str(message).rstrip(".")
