"""ik_llama.cpp as an arm: its package for Python, with run-time repacking."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from localspec.bench.samples import BenchPrompt, Sample
from localspec.errors import NativeError

PACKAGE = "ik-llama-cpp-python"
_CHILD = Path(__file__).with_name("ik_child.py")


def why_no_ik() -> str | None:
    """The reason why `IkLlama` cannot take part, None where it can."""
    if find_spec("ik_llama_cpp") is None:
        return f"not installed (pip install {PACKAGE})"
    return None


class IkLlama:
    """ik_llama.cpp, decoding plainly in a process of its own, on the processor.

    Args:
        target: a GGUF file.
        tokenize: raw text to token ids, BOS included.
        threads, context: as localspec's ModelOptions.

    Raises:
        NativeError: it cannot open the model.
    """

    family = "ik_llama.cpp"
    name = "ik_llama.cpp plain, repacked"

    def __init__(
        self, target: Path, *, tokenize: Callable[[str], list[int]], threads: int, context: int
    ) -> None:
        self.command = (
            f"{PACKAGE}: repack_tensors, no use_mmap, flash_attn, n_ctx={context}, "
            f"n_threads={threads}, {target}"
        )
        self._tokenize = tokenize
        self._process = subprocess.Popen(
            [sys.executable, str(_CHILD), str(target), str(context), str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._process.stdout is not None
        # It logs to both.
        if not any(line == "ready\n" for line in self._process.stdout):
            self.close()
            raise NativeError(f"ik_llama.cpp cannot open {target}.")

    def begin_turn(self) -> None:
        """Nothing: it knows of one answer only."""

    def generate(
        self, prompt: BenchPrompt, *, temperature: float, seed: int, max_tokens: int, turn: int
    ) -> Sample:
        """Answer one prompt.

        Raises:
            NativeError: its process ended.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        asked = [self._tokenize(prompt.text), max_tokens, temperature, seed]
        try:
            print(json.dumps(asked), file=self._process.stdin, flush=True)
        except OSError:
            raise NativeError(f"{self.name} ended.") from None
        line = self._process.stdout.readline()
        if not line:
            raise NativeError(f"{self.name} ended.")
        ids, seconds = json.loads(line)
        tokens = max(0, len(ids) - 1)
        return Sample(
            arm=self.name,
            suite=prompt.suite,
            prompt=prompt.id,
            temperature=temperature,
            turn=turn,
            tokens=tokens,
            seconds=seconds,
            passes=tokens,
            token_ids=tuple(ids),
        )

    def close(self) -> None:
        """End its process."""
        self._process.terminate()
        self._process.communicate()
