"""llama.cpp's server as an arm, plain and with each of its speculative modes."""

import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx2

from localspec.bench.child import ANSWER_TIMEOUT, HOST, START_TIMEOUT, Child, direct, free_port
from localspec.bench.samples import Arm, PeerSetup, Question, Sample
from localspec.errors import NativeError, UsageError

_DRAFT, _DEFAULT_DEPTH = "draft-simple", 3
_NGRAM = ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache")


def _draft(
    depth: int, p_min: float | None = None, ngram: str | None = None
) -> tuple[str, tuple[str, ...]]:
    types = _DRAFT if ngram is None else f"{_DRAFT},{ngram}"
    flags = ["--spec-type", types, "--spec-draft-n-max", str(depth)]
    name = f"draft {depth}"
    if p_min is not None:
        flags += ["--spec-draft-p-min", f"{p_min:g}"]
        name += f" p-min {p_min:g}"
    elif depth == _DEFAULT_DEPTH and ngram is None:
        name += " (default)"
    if ngram is not None:
        # In either order, the n-gram drafts first, and the model if the n-gram finds nothing.
        name += f" + {ngram}"
    return name, tuple(flags)


SERVER_CONFIGURATIONS: Mapping[str, tuple[str, ...]] = dict(
    [
        ("plain", ("--spec-type", "none")),
        *(_draft(depth) for depth in (*range(1, 9), 16)),
        *(_draft(depth, p_min) for depth in (7, 16) for p_min in (0.4, 0.6)),
        # ngram-mod is the mode of --spec-default.
        *((n, ("--spec-type", n)) for n in _NGRAM),
        *(_draft(_DEFAULT_DEPTH, ngram=ngram) for ngram in _NGRAM),
        _draft(7, 0.4, "ngram-mod"),
    ]
)
"""Flags by name, other than those for models, context and threads."""


def require_configurations(names: Sequence[str]) -> None:
    """Raise UsageError for an unknown name."""
    for name in names:
        if name not in SERVER_CONFIGURATIONS:
            known = ", ".join(SERVER_CONFIGURATIONS)
            raise UsageError(
                f"llama-server has no configuration '{name}' here. Choose from {known}."
            )


def needs_draft(flags: Sequence[str]) -> bool:
    return any(flag.startswith(_DRAFT) for flag in flags)


class LlamaServer(Arm):
    """A llama-server, started by the first answer or by `start`. `slots`: concurrent answers, each
    with the setup's context; `start_timeout`, `answer_timeout`: seconds."""

    def __init__(
        self,
        binary: Path,
        configuration: str,
        flags: Sequence[str],
        setup: PeerSetup,
        *,
        slots: int = 1,
        start_timeout: float = START_TIMEOUT,
        answer_timeout: float = ANSWER_TIMEOUT,
    ) -> None:
        self.name = f"llama-server {configuration}"
        self.every_turn = configuration == "plain"
        command = ["-m", str(setup.target), *flags]
        if needs_draft(flags):
            command += ["--spec-draft-model", str(setup.draft)]
        command += ["-c", str(slots * setup.context), "-t", str(setup.threads), "-np", str(slots)]
        if setup.gpu_layers >= 0:
            layers = str(setup.gpu_layers)
            command += ["-ngl", layers]
            command += ["--spec-draft-ngl", layers] if needs_draft(flags) else []
        self.command = shlex.join([binary.name, *command])
        # Turn off saved prompts and web pages, which do not change the time of an answer.
        command += ["--cache-ram", "0", "--no-webui"]
        self._program = [str(binary.resolve()), *command]
        self._start_timeout, self._answer_timeout = start_timeout, answer_timeout
        self._child: Child | None = None
        self._address = ""
        self._tokenize = setup.tokenize

    def generate(self, question: Question) -> Sample:
        child = self.start()
        request = {
            "prompt": self._tokenize(question.prompt.text),
            "n_predict": question.max_tokens,
            "temperature": question.temperature,
            "top_k": 40,
            "top_p": 0.95,
            "min_p": 0.05,
            "seed": question.seed,
            "cache_prompt": False,
            "return_tokens": True,
        }
        try:
            return _sample(self.name, self._post(child, request))
        except BaseException:
            # Otherwise it would continue to generate, and delay the next answer.
            self.close()
            raise

    def start(self) -> Child:
        """Start the server if it is not running, and wait until it is healthy. Raises
        LocalspecError."""
        if self._child is None or not self._child.running:
            self.close()
            port = free_port()
            self._address = f"http://{HOST}:{port}"
            self._child = Child(
                self.name,
                [*self._program, "--host", HOST, "--port", str(port)],
                advice="Name the llama-server program of a llama.cpp build.",
                environment={n: v for n, v in os.environ.items() if not n.startswith("LLAMA_")},
            )
            self._child.wait_until_healthy(self._address, self._start_timeout)
        return self._child

    def close(self) -> None:
        """End the process; may be repeated."""
        if self._child is not None:
            self._child.close()

    def _post(self, child: Child, body: dict[str, Any]) -> dict[str, Any]:
        """Send a request and wait for the reply. Raises NativeError: the server refuses it, takes
        longer than `answer_timeout`, or dies."""
        try:
            address = f"{self._address}/completion"
            response = direct("POST", address, json=body, timeout=self._answer_timeout)
            if response.is_success:
                reply: dict[str, Any] = response.json()
                return reply
            raise NativeError(f"{self.name} refused the prompt: {_message(response)}.")
        except httpx2.TimeoutException:
            raise NativeError(
                f"{self.name} did not answer within {self._answer_timeout:g} seconds. "
                "Ask for fewer tokens, or use a smaller model."
            ) from None
        except (httpx2.HTTPError, ValueError) as error:
            # The connection ends a moment before the process does.
            try:
                child.process.wait(1)
            except subprocess.TimeoutExpired:
                raise NativeError(
                    f"{self.name} aborted its answer: {error or type(error).__name__}"
                ) from None
            raise NativeError(f"{self.name} exited while answering: {child.error_line()}") from None


def _sample(arm: str, reply: dict[str, Any]) -> Sample:
    """A reply as a sample.

    `predicted_n` counts an end-of-generation token too; `predicted_ms` runs from the first token.
    """
    try:
        timings = reply["timings"]
        tokens = max(0, int(timings["predicted_n"]) - 1)
        seconds = float(timings["predicted_ms"]) / 1e3 if tokens else 0.0
        # Missing if nothing was drafted.
        drafted = int(timings.get("draft_n", 0))
        accepted = int(timings.get("draft_n_accepted", 0))
        ids = tuple(int(token) for token in reply["tokens"])
        text = str(reply["content"])
    except (KeyError, TypeError, ValueError) as error:
        raise NativeError(
            f"{arm} answered without the expected figures ({error!r}). Use the llama-server of "
            "the llama.cpp that llama-cpp-python contains."
        ) from None
    # A pass yields the accepted tokens and one more, unless an end-of-generation token shortened
    # the last one.
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


def _message(response: httpx2.Response) -> str:
    try:
        return str(response.json()["error"]["message"]).rstrip(".")
    except (ValueError, KeyError, TypeError):
        return f"HTTP status {response.status_code}"
