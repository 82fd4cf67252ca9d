"""ik_llama-cpp-python as an arm, with weights repacked at run time.

It runs in another process (`localspec.bench.ik_child`): its libraries have llama.cpp's names.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

from localspec.bench import ik_child
from localspec.bench.child import Child
from localspec.bench.samples import Arm, BenchPrompt, Sample


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
        # Isolated, as other modules beside the script have names of the standard library's.
        command = [str(python), "-I", ik_child.__file__, str(target), str(threads), str(context)]
        advice = "Name the Python of an environment with ik_llama-cpp-python."
        self._child = Child(self.name, command, advice=advice, talks=True)
        try:
            version = self._child.hear("started", start_timeout)["version"]
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
        try:
            self._child.say(question)
            reply = self._child.hear("answered", self._answer_timeout)
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
        self._child.close()
