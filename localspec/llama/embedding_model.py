"""Models that were made for embeddings alone: BERT and its like, without memory and without logits.

llama.cpp pools by itself as the file says (`pooling_type`: the mean, the first token, the last);
a file that says nothing, or that nothing is pooled, gets the mean.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import llama_cpp
import numpy as np

from localspec.errors import Cancelled, NativeError, UsageError
from localspec.llama import compute_thread, library
from localspec.llama.batch import Batch
from localspec.llama.context_params import context_params
from localspec.llama.embeddings import LONGEST, Vector
from localspec.llama.model import Model, Progress
from localspec.llama.options import ModelOptions

_NONE, _MEAN, _RANK = 0, 1, 4  # llama.h, llama_pooling_type


class EmbeddingModel:
    """Makes vectors of texts. Any thread may call it; they take turns.

    Args:
        path: a GGUF file of such a model.
        options: where it runs.
        progress: see `Model`.

    Attributes:
        model: weights and vocabulary.
        longest: tokens that a text may have.

    Raises:
        ModelNotFound, ModelInvalid, NativeError: see `Model`; there is no memory for the passes, or
            the model ranks texts instead.
    """

    def __init__(
        self, path: Path, options: ModelOptions, *, progress: Progress | None = None
    ) -> None:
        self.model = Model(path, options, progress=progress, embeds_alone=True)
        self._handle: int | None = None
        self._lock = threading.Lock()
        self._flag = ctypes.create_string_buffer(2)
        try:
            self._open(options)
        except BaseException:
            self.close()
            raise

    def _open(self, options: ModelOptions) -> None:
        model = self.model
        self.longest = min(model.trained_context, options.context or LONGEST, LONGEST)
        params = context_params(model, options, self._flag, sequences=1, rows=self.longest)
        # Every token sees every other one: a text is one pass.
        params.n_ctx = params.n_batch = params.n_ubatch = self.longest
        params.embeddings = True
        pooling = model.metadata.get(
            f"{model.metadata.get('general.architecture')}.pooling_type", str(_NONE)
        )
        if pooling == str(_RANK):
            raise NativeError(f"{model.path} ranks texts. Choose a model that embeds them.")
        if pooling == str(_NONE):
            params.pooling_type = _MEAN
        library.forget_complaints()
        self._handle = llama_cpp.llama_init_from_model(model.handle, params)
        if not self._handle:
            cause = library.complaint() or "llama.cpp gave no reason"
            raise NativeError(
                f"No passes of {self.longest} tokens can be made for {model.path}: {cause}. Ask "
                "for shorter ones with --ctx."
            )
        self._batch = Batch(self.longest, 1)

    def close(self) -> None:
        """Free all, once nobody uses it."""
        with self._lock:
            if self._handle:
                llama_cpp.llama_free(self._handle)
                self._handle = None
            self.model.close()

    def embed(self, tokens: Sequence[int], stopped: Callable[[], bool] = lambda: False) -> Vector:
        """The vector of a text, of length 1.

        Args:
            tokens: at least one, at most `longest`.
            stopped: asked before the pass.

        Returns:
            float32 [output width of the model].

        Raises:
            UsageError: no tokens, or more.
            Cancelled: `stopped` said so.
            NativeError: llama.cpp refused the pass.
        """
        if not 0 < len(tokens) <= self.longest:
            raise UsageError(
                f"A text of {len(tokens)} tokens cannot be embedded. Give 1 to {self.longest}."
            )
        with self._lock:
            if stopped():
                raise Cancelled("Stopped on request.")
            memory = llama_cpp.llama_get_memory(self._handle)
            if memory:  # those that have one
                llama_cpp.llama_memory_clear(memory, True)
            batch = self._batch.chain(tokens, len(tokens))
            status = compute_thread.call(llama_cpp.llama_decode, self._handle, batch)
            found = llama_cpp.llama_get_embeddings_seq(self._handle, 0) if not status else None
            if not found:
                raise NativeError(
                    f"llama.cpp failed in a pass over {len(tokens)} tokens (status {status}): "
                    f"{library.complaint() or 'no reason given'}. Run with -v to see its log."
                )
            vector = np.ctypeslib.as_array(found, (self.model.output_width,)).astype(np.float32)
        length = float(np.linalg.norm(vector))
        return (vector / length if length else vector).astype(np.float32)
