"""Native contexts: cells, threads, passes, and their rows of logits."""

from __future__ import annotations

import ctypes
from time import perf_counter
from typing import Any, Protocol

import llama_cpp
import numpy as np

from localspec.decoding.sampling import Rows
from localspec.errors import Cancelled, ModelInvalid, NativeError
from localspec.llama import chosen_outputs, compute_thread, kernels, library
from localspec.llama.chosen_outputs import ChosenOutputs
from localspec.llama.model import Model

_FULL, _ABORTED = 1, 2

# Not a quick one: on a GPU it waits for the pass.
_logits_address = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(
    ("llama_get_logits", llama_cpp.llama_cpp._lib)
)


class CacheFull(NativeError):
    """Too few cells are left for a pass; the cache is unchanged."""


class NativeContext:
    """A llama_context, `handle`, and its llama_memory_t. `stop`: the flag in `params`; `wanted`:
    its size, for error messages. A NativeError without enough memory; a ModelInvalid if the model
    has no KV cache, unless `needs_memory` is false.

    Attributes:
        in_caller: whether passes run in the caller's thread, beside others.
        chosen: tokens that passes compute logits of, None for all.
        cells: tokens of all sequences, a multiple of 256; `batch`: most tokens of a pass.
        snapshots: tokens that a recurrent memory can be cut back by.
    """

    def __init__(
        self,
        model: Model,
        params: Any,
        stop: ctypes.Array[ctypes.c_char],
        wanted: str,
        *,
        needs_memory: bool = True,
    ) -> None:
        self.model, self._size = model, model.vocabulary.size
        self._stop = stop
        self.in_caller = False
        self.chosen: ChosenOutputs | None = None
        self._most_views = 2 * int(params.n_outputs_max)
        self._views: dict[tuple[int, int], Rows] = {}
        library.clear_errors()
        self.handle: Any = llama_cpp.llama_init_from_model(model.handle, params)
        if not self.handle:
            raise NativeError(
                f"No context of {wanted} can be made for {model.path}: {library.first_error()}. "
                "Ask for a shorter one with --ctx, or another KV type."
            )
        model.apply_adapters(self.handle)
        self.memory = llama_cpp.llama_get_memory(self.handle)
        if needs_memory and not self.memory:
            self.close()
            raise ModelInvalid(
                f"{model.path} cannot generate text: it has no memory of a sequence. "
                "Choose a GGUF of a chat or completion model."
            )
        self.cells = int(llama_cpp.llama_n_ctx(self.handle))
        self.batch = int(llama_cpp.llama_n_batch(self.handle))
        self.snapshots = int(llama_cpp.llama_n_rs_seq(self.handle))

    def close(self) -> None:
        if self.handle is not None:
            llama_cpp.llama_free(self.handle)
            self.handle = None

    def cancel(self) -> None:
        """Make the running pass, or the next one, raise Cancelled. From any thread."""
        self._stop[0] = b"\x01"

    def resume(self) -> None:
        self._stop[0] = b"\x00"

    def set_threads(self, count: int) -> None:
        llama_cpp.llama_set_n_threads(self.handle, count, count)

    def choose_outputs(self) -> None:
        """Compute logits only of frequent tokens and of those that were read; others get -1e30. Do
        nothing if that would save little, or without localspec's kernels."""
        vocabulary = self.model.vocabulary
        if self.model.kernels.in_use and self._size >= chosen_outputs.MIN_VOCABULARY:
            ends = [token for token in (vocabulary.bos, vocabulary.eos) if token >= 0]
            self.chosen = ChosenOutputs(self._size, ends)

    def set_bidirectional(self, *, on: bool) -> None:
        """Set whether tokens of a pass also attend to later ones."""
        llama_cpp.llama_set_causal_attn(self.handle, not on)

    def length(self, sequence: int) -> int:
        """Tokens of a sequence."""
        return int(llama_cpp.llama_memory_seq_pos_max(self.memory, sequence)) + 1

    def clear(self) -> None:
        if self.memory:
            llama_cpp.llama_memory_clear(self.memory, False)

    def run(self, batch: Any) -> int:
        """Run a pass over a llama_batch; returns the address of its logits, for `logits`. On
        CacheFull the cache is unchanged; on Cancelled and NativeError it may have new tokens."""
        if self.in_caller or compute_thread.is_current():
            status = self._pass(batch)
        else:
            status = compute_thread.call(self._pass, batch)
        if status == 0:
            return _logits_address(self.handle)  # type: ignore[no-any-return]
        if status == _FULL:
            raise CacheFull(
                f"The KV cache of {self.cells} tokens is full. Ask for a longer context "
                "with --ctx, or shorter answers with --max-tokens."
            )
        raise failure(status, batch.n_tokens)

    def _pass(self, batch: Any) -> int:
        status: int
        if self.chosen is None:
            status = llama_cpp.llama_decode(self.handle, batch)
        else:
            with kernels.choosing(self.chosen.tiles, self._size):
                status = llama_cpp.llama_decode(self.handle, batch)
        return status

    def logits(self, address: int, outputs: int) -> Rows:
        """float32 [outputs, vocabulary], a view that the next pass overwrites. Views are cached."""
        rows = self._views.get((address, outputs))
        return self._view(address, outputs) if rows is None else rows

    def _view(self, address: int, outputs: int) -> Rows:
        if len(self._views) > self._most_views:  # llama.cpp moved its buffer: old views are void
            self._views.clear()
        if outputs:
            pointer = ctypes.cast(address, ctypes.POINTER(ctypes.c_float))
            rows: Rows = np.ctypeslib.as_array(pointer, (outputs, self._size))
        else:
            rows = np.empty((0, self._size), np.float32)
        self._views[address, outputs] = rows
        return rows


def failure(status: int, tokens: int) -> Cancelled | NativeError:
    """The error for the status of a pass."""
    if status == _ABORTED:
        return Cancelled("Stopped on request.")
    return NativeError(
        f"llama.cpp failed in a pass over {tokens} tokens (status {status}): "
        f"{library.first_error()}. Run with -v to see its log."
    )


class PassWatch(Protocol):
    """Decides how passes run."""

    def chunk(self, context: int, most: int) -> int:
        """Most tokens of a prompt's next chunk, a multiple of MIN_CHUNK up to `most`."""
        ...

    def record_pass(self, tokens: int, context: int, seconds: float) -> None:
        """Record the time of a pass over `tokens` tokens, after `context` tokens."""
        ...


class NativeCache:
    """A cache of one text, and its passes. `native_seconds`: total time of native passes; `watch`:
    notified of every pass."""

    model: Model
    capacity: int
    tokens: list[int]
    native_seconds: float
    watch: PassWatch | None
    _native: NativeContext

    @property
    def handle(self) -> Any:
        return self._native.handle

    def close(self) -> None:
        self._native.close()

    def cancel(self) -> None:
        """As `NativeContext.cancel`."""
        self._native.cancel()

    def resume(self) -> None:
        """Undo `cancel`."""
        self._native.resume()

    def set_threads(self, count: int) -> None:
        """Set the number of threads of later passes."""
        self._native.set_threads(count)

    def compute_in_caller(self) -> None:
        """Run later passes in the caller's thread, concurrently with those of other caches."""
        self._native.in_caller = True

    def filler(self, count: int) -> list[int]:
        """Tokens for timing, without the first ids, which may be special."""
        return [i % self.model.vocabulary.size for i in range(32, 32 + count)]

    def _decode(self, batch: Any, outputs: int) -> Rows:
        """Run a llama_batch and wait for its logits; if it raises, the cache is unchanged."""
        started = perf_counter()
        try:
            address = self._native.run(batch)
        except (Cancelled, NativeError):
            self.native_seconds += perf_counter() - started
            self._drop_failed()
            raise
        seconds = perf_counter() - started
        self.native_seconds += seconds
        if self.watch is not None:
            self.watch.record_pass(int(batch.n_tokens), len(self.tokens), seconds)
        return self._native.logits(address, outputs)

    def _drop_failed(self) -> None:
        """Drop cells after `tokens` that a failed pass left."""
        raise NotImplementedError
