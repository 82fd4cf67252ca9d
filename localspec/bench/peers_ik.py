"""ik_llama-cpp-python as an arm, with weights repacked at run time.

It runs in another process (`localspec.bench.ik_child`): its libraries have llama.cpp's names.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Timer
from typing import Any

from localspec.bench import ik_child
from localspec.bench.llama_server import end
from localspec.bench.samples import Arm, BenchPrompt, Sample
from localspec.errors import NativeError, UsageError


class IkLlama(Arm):
    """Plain decoding by ik_llama.cpp; the package cannot speculate. `python`: of an environment
    with ik_llama-cpp-python; `tokenize`, `piece`: raw text to token ids, BOS included, and back;
    `start_timeout`, `answer_timeout`: seconds. Raises LocalspecError."""

    def __init__(
        self,
        python: Path,
        target: Path,
        *,
        tokenize: Callable[[str], list[int]],
        piece: Callable[[int], bytes],
        threads: int,
        context: int,
        start_timeout: float = 120.0,
        answer_timeout: float = 600.0,
    ) -> None:
        self.name = "ik_llama-cpp-python repacked plain"
        self._tokenize, self._piece = tokenize, piece
        self._answer_timeout = answer_timeout
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        command = [str(target), str(threads), str(context)]
        try:
            # Isolated, as other modules beside the script have names of the standard library's.
            self._process = subprocess.Popen(
                [str(python), "-I", ik_child.__file__, *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                text=True,
                encoding="utf-8",
            )
        except OSError as error:
            self._log.close()
            raise UsageError(
                f"{python} cannot be run: {error.strerror}. Name the Python of an environment with "
                "ik_llama-cpp-python."
            ) from None
        try:
            version = self._reply("started", start_timeout)["version"]
        except BaseException:
            self.close()
            raise
        options = f"repack_tensors=True, flash_attn=True, n_ctx={context}, n_threads={threads}"
        self.command = f"ik_llama-cpp-python {version}: {shlex.quote(str(target))}, {options}"

    def generate(
        self, prompt: BenchPrompt, *, temperature: float, seed: int, max_tokens: int
    ) -> Sample:
        """Answer one prompt. Raises NativeError: a pass failed, or the process died."""
        question = {
            "prompt": self._tokenize(prompt.text),
            "max_tokens": max_tokens,
            "temperature": temperature,
            "seed": seed,
        }
        assert self._process.stdin is not None
        try:
            with suppress(OSError):  # it is gone; its last words are told below
                self._process.stdin.write(json.dumps(question) + "\n")
                self._process.stdin.flush()
            reply = self._reply("answered", self._answer_timeout)
        except BaseException:
            # Its answer would be taken for the next one's.
            self.close()
            raise
        ids = tuple(reply["tokens"])
        return Sample(
            tokens=len(ids) - 1,
            seconds=reply["seconds"],
            passes=len(ids) - 1,
            drafted=0,
            accepted=0,
            text=b"".join(map(self._piece, ids)).decode("utf-8", "replace"),
            token_ids=ids,
        )

    def close(self) -> None:
        """End the process; may be repeated."""
        if self._log.closed:
            return
        end(self._process)
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with suppress(OSError):  # of what it did not read
                stream.close()
        self._log.close()

    def _reply(self, done: str, limit: float) -> dict[str, Any]:
        """The next line. Raises NativeError: the process ends instead, or takes longer than `limit`
        seconds."""
        assert self._process.stdout is not None
        timer = Timer(limit, self._process.kill)
        timer.start()
        try:
            line = self._process.stdout.readline()
            late = not timer.is_alive()
        finally:
            timer.cancel()
        if line:
            reply: dict[str, Any] = json.loads(line)
            return reply
        if late:
            raise NativeError(f"{self.name} had not {done} after {limit:g} seconds.")
        status = self._process.wait(5.0)
        raise NativeError(
            f"{self.name} ended before it had {done}: {self._last_words()} (exit status {status})"
        )

    def _last_words(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else "its log is empty"
