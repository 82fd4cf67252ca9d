"""Predictions of a model without some of its layers, without writing a file.

A block adds to the residual stream. Without it, its output equals its input, which a ggml callback
sets. All blocks are still computed.
"""

import itertools
import re
from collections.abc import Sequence

import llama_cpp
import numpy as np
import numpy.typing as npt

from localspec.llama import ggml
from localspec.llama.batch import Batch, chain
from localspec.llama.model import Model
from localspec.llama.native_context import NativeContext
from localspec.llama.options import ModelOptions

MAX_TOKENS = 128
"""Maximum tokens of a text."""
_OUT = re.compile(r"l_out-(\d+)")


class WithoutLayers:
    """A cache whose passes skip layers; for architectures in `gguf.architectures.ALIKE`."""

    def __init__(self, model: Model, options: ModelOptions) -> None:
        self._left_out: frozenset[int] = frozenset()
        self._outputs: list[npt.NDArray[np.float32]] = []  # of the blocks that were not left out
        watch = self._watch = llama_cpp.ggml_backend_sched_eval_callback(self._on_tensor)
        self._native = NativeContext(
            model, options, rows=MAX_TOKENS, batch=MAX_TOKENS, n_ctx=MAX_TOKENS, cb_eval=watch
        )
        self._batch = Batch(MAX_TOKENS, 1)

    def close(self) -> None:
        self._native.close()

    def choices(self, tokens: Sequence[int], left_out: Sequence[int]) -> npt.NDArray[np.int64]:
        """The most probable next token after each of up to MAX_TOKENS, int64 [tokens]. `left_out`:
        layers, never 0."""
        self._native.clear()
        self._left_out, self._outputs = frozenset(left_out), []
        count = len(tokens)
        rows = self._native.run(self._batch.fill([chain(tokens, count)]), count)
        found: npt.NDArray[np.int64] = rows.argmax(axis=1)
        return found

    def influences(self, tokens: Sequence[int]) -> dict[int, float]:
        """1 − the mean cosine similarity of each layer's input and output, without layer 0 (Men et
        al. 2024, ShortGPT, section 3.1)."""
        self.choices(tokens, ())
        between = [outcome.reshape(len(tokens), -1) for outcome in self._outputs]
        return {
            layer: 1.0 - _cosine(before, after)
            for layer, (before, after) in enumerate(itertools.pairwise(between), 1)
        }

    def _on_tensor(self, tensor: int, ask: bool, _user_data: object) -> bool:
        found = _OUT.fullmatch(ggml.text(ggml.tensor_name(tensor)))
        if ask or found is None:
            return found is not None
        layer = int(found[1])
        if layer in self._left_out:
            ggml.set_tensor_values(tensor, self._outputs[-1])
        else:
            self._outputs.append(ggml.tensor_values(tensor))
        return True


def _cosine(one: npt.NDArray[np.float32], other: npt.NDArray[np.float32]) -> float:
    lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    return float(((one * other).sum(axis=1) / np.maximum(lengths, 1e-9)).mean())
