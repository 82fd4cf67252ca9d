"""llama.cpp's own server as an arm, plain and with each of its ways to speculate."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

from localspec.bench.samples import BenchPrompt, Sample
from localspec.bench.server_configurations import ServerConfiguration
from localspec.bench.server_process import ServerProcess
from localspec.errors import NativeError, UsageError


class LlamaServer:
    """A llama-server process, started by the first answer or by `start`.

    Args:
        tokenize: raw text to token ids, BOS included.
        weight_buffers: whether the CPU's own weight layouts work.
        fresh: start anew for each answer; None where the configuration remembers answers.
        slots: answers at once, each with `context` tokens.
        start_timeout, answer_timeout: seconds.

    Raises:
        UsageError: a file is missing, or the draft model that the configuration needs.
    """

    family = "llama-server"

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
        fresh: bool | None = None,
        slots: int = 1,
        start_timeout: float = 120.0,
        answer_timeout: float = 600.0,
    ) -> None:
        _check_files(binary, target)
        self.name = f"llama-server {configuration.name}"
        command = ["-m", str(target), *configuration.flags]
        if configuration.needs_draft:
            if draft is None:
                raise UsageError(
                    f"'{self.name}' needs a draft model. Name one with --draft, or leave it out."
                )
            _check_files(binary, draft)
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
        self._process = ServerProcess(
            self.name,
            [str(binary.resolve()), *command],
            start_timeout=start_timeout,
            answer_timeout=answer_timeout,
        )
        self._tokenize = tokenize
        self._fresh = configuration.remembers if fresh is None else fresh

    def begin_turn(self) -> None:
        """Nothing: what it knows, it knows of one answer only."""

    def generate(
        self, prompt: BenchPrompt, *, temperature: float, seed: int, max_tokens: int, turn: int
    ) -> Sample:
        """Answer one prompt.

        Raises:
            NativeError: the server does not start, refuses the prompt, or dies.
        """
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
            reply = self._process.post("/completion", request)
        except BaseException:
            # It would still be generating, and the next answer would wait for it.
            self.close()
            raise
        if self._fresh:
            self.close()
        return _sample(self.name, prompt, temperature, turn, reply)

    def start(self) -> None:
        """Start the server if it does not run, and wait until its models are loaded.

        Raises:
            UsageError: the binary is no program.
            NativeError: it ends, or takes longer than `start_timeout`.
        """
        self._process.start()

    def close(self) -> None:
        """End the server; may be repeated."""
        self._process.close()


def _sample(
    arm: str, prompt: BenchPrompt, temperature: float, turn: int, reply: dict[str, Any]
) -> Sample:
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
        arm=arm,
        suite=prompt.suite,
        prompt=prompt.id,
        temperature=temperature,
        turn=turn,
        tokens=tokens,
        seconds=seconds,
        passes=tokens - accepted if whole else None,
        drafted=drafted,
        accepted=accepted,
        text=text,
        token_ids=ids,
    )


def _check_files(*files: Path) -> None:
    for file in files:
        if not file.is_file():
            raise UsageError(f"There is no file {file}. Check the path.")
