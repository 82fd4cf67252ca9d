"""Native contexts: parameters, cells, threads, passes, and their rows of logits."""

import ctypes
import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import lru_cache
from time import perf_counter
from typing import Any

import llama_cpp
import numpy as np

from localspec.decoding.sampling import Rows
from localspec.errors import Cancelled, ModelInvalid, NativeError
from localspec.llama import chosen_outputs, compute_thread, kernels, library
from localspec.llama.batch import Batch, PassPart
from localspec.llama.chosen_outputs import ChosenOutputs
from localspec.llama.cores import default_threads
from localspec.llama.hidden import HiddenStates
from localspec.llama.model import Model
from localspec.llama.options import MAX_LEAVES, MAX_SNAPSHOT_DRAFT, MAX_TREE, ModelOptions
from localspec.llama.sequences import Sequences, sequence_remove
from localspec.llama.types import TYPE_NUMBERS

BRANCH_IDS = 64
"""Sequence ids for the branches of all answers; each reserves a row of logits."""
KEPT_IDS = 16
"""Sequence ids for kept texts, at least two per answer."""
ROWS_EACH = 4
"""Rows of logits beyond one tree, per answer."""
_FULL, _ABORTED = 1, 2
_FLASH = {"auto": -1, "off": 0, "on": 1}

_libc = ctypes.cdll.msvcrt if sys.platform == "win32" else ctypes.CDLL(None)
# ggml calls its abort callback before every node of the graph. A Python function would have to take
# the interpreter lock each time; strlen of a one-byte flag returns 0 or 1 without it.
_is_set = ctypes.cast(_libc.strlen, llama_cpp.ggml_abort_callback)

# Releases the interpreter lock: on a GPU it waits for the pass.
_logits_address = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(
    ("llama_get_logits", llama_cpp.llama_cpp._lib)
)


class CacheFull(NativeError):
    """Too few cells are left for a pass; the cache is unchanged."""


def kv_types(options: ModelOptions, model: Model) -> tuple[str, str]:
    """Element types of keys and values. With two different types, the rounding of llama.cpp's CPU
    attention does not depend on the size of a pass, as exact answers need without localspec's
    kernels. Devices may not support such a pair (Vulkan: `ggml_backend_vk_device_supports_op`)."""
    types = options.kv_type_k, options.kv_type_v
    stock = options.exact and not model.kernels.in_use and not model.offloaded
    return ("f16", "bf16") if stock and {*types} <= {"f16", "f32"} else types  # F32 is read as F16


@lru_cache(maxsize=256)  # making a view takes 1.7 µs
def _rows_at(address: Any, outputs: int, size: int) -> Rows:
    if not outputs:
        return np.empty((0, size), np.float32)
    numbers: Any = (ctypes.c_float * (outputs * size)).from_address(address)
    return np.frombuffer(numbers, np.float32).reshape(outputs, size)


class NativeContext:
    """A llama_context, `handle`, and its llama_memory_t. A NativeError without enough memory; a
    ModelInvalid if the model has no KV cache, unless `needs_memory` is false.

    Args:
        rows: most rows of logits of a pass.
        sequences: number of sequence ids; a recurrent memory has one.
        batch: most tokens of a pass; None for that of the options.
        flag: two characters that outlive the context, set by `cancel`; None creates them.
        fields: further fields of llama_context_params.

    Attributes:
        chosen: tokens for which passes compute logits, None for all.
        cells: tokens of all sequences, a multiple of 256; `batch`: most tokens of a pass.
        seconds: of the latest pass, until its logits are there.
        watch: called after each pass with its tokens and seconds.
        snapshots: number of tokens by which a recurrent memory can be truncated.
    """

    def __init__(
        self,
        model: Model,
        options: ModelOptions,
        *,
        rows: int,
        sequences: int = 1,
        batch: int | None = None,
        flag: ctypes.Array[ctypes.c_char] | None = None,
        needs_memory: bool = True,
        **fields: Any,
    ) -> None:
        self.model, self._size = model, model.vocabulary.size
        self._never = model.vocabulary.never
        self._flag = ctypes.create_string_buffer(2) if flag is None else flag
        self.chosen: ChosenOutputs | None = None
        self.seconds = 0.0
        self.watch: Callable[[int, float], object] | None = None
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = options.context_for(model.trained_context)
        params.n_batch = params.n_ubatch = batch or options.batch
        params.n_seq_max = 1 if model.recurrent else sequences
        params.n_rs_seq = MAX_SNAPSHOT_DRAFT if model.recurrent else 0
        params.n_outputs_max = rows
        params.n_threads = options.fixed_threads or default_threads()
        params.n_threads_batch = params.n_threads
        params.flash_attn_type = _FLASH[options.flash_attention]
        keys, values = kv_types(options, model)
        params.type_k, params.type_v = TYPE_NUMBERS[keys.upper()], TYPE_NUMBERS[values.upper()]
        params.kv_unified = True
        params.swa_full = True  # a sliding window could not be rolled back
        params.no_perf = True
        params.abort_callback = _is_set
        params.abort_callback_data = ctypes.addressof(self._flag)
        for name, value in fields.items():
            setattr(params, name, value)
        library.clear_errors()
        made: list[Any] = []

        def create() -> None:
            kernels.take(wanted=model.kernels.in_use)
            made.append(llama_cpp.llama_init_from_model(model.handle, params))

        try:  # in that thread, as ctypes would drop an interrupt in the log's callback
            compute_thread.call(create)
        except BaseException:
            if any(made):
                llama_cpp.llama_free(made[0])
            raise
        self.handle: Any = made[0]
        if not self.handle:
            raise NativeError(
                f"No context of {params.n_ctx} tokens can be created for {model.path}: "
                f"{library.first_error()}. Ask for a shorter one with --ctx, or another KV type."
            )
        if model.kernels.in_use:
            kernels.keep_graphs(self.handle)
        model.apply_adapters(self.handle)
        self.memory = llama_cpp.llama_get_memory(self.handle)
        if needs_memory and not self.memory:
            self.close()
            raise ModelInvalid(
                f"{model.path} cannot generate text: it has no memory for a sequence. "
                "Choose a GGUF of a chat or completion model."
            )
        self.cells = int(llama_cpp.llama_n_ctx(self.handle))
        self.batch = int(llama_cpp.llama_n_batch(self.handle))
        self.snapshots = int(llama_cpp.llama_n_rs_seq(self.handle))

    def close(self) -> None:
        if self.handle is not None:
            kernels.drop_graphs(self.handle)
            llama_cpp.llama_free(self.handle)
            self.handle = None

    def cancel(self) -> None:
        """Make the running pass, or the next one, raise Cancelled. From any thread."""
        self._flag[0] = b"\x01"

    def resume(self) -> None:
        self._flag[0] = b"\x00"

    def set_threads(self, count: int) -> None:
        llama_cpp.llama_set_n_threads(self.handle, count, count)

    def choose_outputs(self) -> None:
        """Compute logits only for frequent tokens and those that were read; others get -1e30. Do
        nothing if that would save little, or without localspec's kernels."""
        vocabulary = self.model.vocabulary
        if self.model.kernels.in_use and self._size >= chosen_outputs.MIN_VOCABULARY:
            ends = [token for token in (vocabulary.bos, vocabulary.eos) if token >= 0]
            self.chosen = ChosenOutputs(self._size, ends)

    def set_bidirectional(self, *, on: bool) -> None:
        """Set whether tokens of a pass also attend to later ones."""
        llama_cpp.llama_set_causal_attn(self.handle, not on)

    def length(self, sequence: int) -> int:
        return int(llama_cpp.llama_memory_seq_pos_max(self.memory, sequence)) + 1

    def clear(self) -> None:
        if self.memory:
            llama_cpp.llama_memory_clear(self.memory, False)

    def run(self, batch: Any, outputs: int = 0) -> Rows:
        """Run a pass over a llama_batch; returns logits, float32 [outputs, vocabulary], a view that
        the next pass overwrites. On CacheFull the cache is unchanged; on Cancelled and NativeError
        it may have new tokens."""
        started = perf_counter()
        if compute_thread.is_current():
            status = self._pass(batch)
        else:
            status = compute_thread.call(self._pass, batch)
        address = None if status else _logits_address(self.handle)
        self.seconds = perf_counter() - started
        if status == _FULL:
            raise CacheFull(
                f"The KV cache of {self.cells} tokens is full. Ask for a longer context "
                "with --ctx, or shorter answers with --max-tokens."
            )
        if status:
            raise failure(status, batch.n_tokens)
        if self.watch is not None:
            self.watch(batch.n_tokens, self.seconds)
        rows = _rows_at(address, outputs, self._size)
        if self._never:
            rows[:, self._never] = -math.inf
        return rows

    def _pass(self, batch: Any) -> int:
        status: int
        if self.chosen is None:
            status = llama_cpp.llama_decode(self.handle, batch)
        else:
            with kernels.choosing(self.chosen.tiles, self._size):
                status = llama_cpp.llama_decode(self.handle, batch)
        return status


class SharedContext(NativeContext):
    """One KV cache for `options.parallel` answers, in shared passes of up to `rows` rows of logits.

    Each answer has `leaves` sequence ids, for its text and branches; ids for `kept` texts follow.
    Not thread-safe: nothing may use it while a pass runs. A recurrent memory serves one answer.
    `flag`: two characters that outlive the context, set by `cancel`. `capacity`: most tokens of an
    answer, prompt included. All texts share that many cells, counting common tokens once; with
    `each`, every answer has that many.
    """

    def __init__(
        self,
        model: Model,
        options: ModelOptions,
        *,
        each: bool = False,
        flag: ctypes.Array[ctypes.c_char] | None = None,
    ) -> None:
        self.answers = answers = options.parallel
        several = answers > 1
        self.leaves = 1 if model.recurrent else max(2, min(MAX_LEAVES, BRANCH_IDS // answers))
        self.kept = max(KEPT_IDS, 2 * answers) if several else 0
        ids = answers * self.leaves + self.kept
        self.rows = max(ids, MAX_TREE + 1 + (ROWS_EACH * answers if several else 0))
        caches = answers if each else 1
        tokens = caches * options.context_for(model.trained_context)
        super().__init__(model, options, rows=self.rows, sequences=ids, flag=flag, n_ctx=tokens)
        # llama.cpp may round the number of cells up.
        self.capacity = min(self.cells // caches, options.context or self.cells // caches)
        try:
            self.arrays = Batch(self.batch, self.leaves)
            self.hidden = HiddenStates(model, self.handle)
        except BaseException:
            self.close()
            raise

    def answer_sequences(self, number: int) -> Sequences:
        return Sequences(self.memory, self.leaves, number * self.leaves)

    def kept_sequences(self, number: int) -> Sequences:
        """The sequence id of a kept text, 0 … `kept` - 1."""
        return Sequences(self.memory, 1, self.answers * self.leaves + number)

    def decode(self, parts: Sequence[PassPart]) -> list[Rows]:
        """Run a pass over at most `batch` tokens and `rows` outputs. For each part float32
        [outputs, vocabulary], views that the next pass overwrites. Raises as `run`."""
        rows = self.run(self.arrays.fill(parts), sum(part.outputs for part in parts))
        results, token, row = [], 0, 0
        for part in parts:
            if part.inputs is not None:
                part.inputs.update(self.hidden.rows(token, len(part.tokens)))
            results.append(rows[row : row + part.outputs])
            token, row = token + len(part.tokens), row + part.outputs
        return results

    def undo(self, parts: Sequence[PassPart]) -> None:
        """Drop tokens that a failed pass may have added."""
        for part in parts:
            for sequence in part.sequences[0]:  # the first token is in all of its sequences
                sequence_remove(self.memory, sequence, part.positions[0], -1)


def failure(status: int, tokens: int) -> Cancelled | NativeError:
    if status == _ABORTED:
        return Cancelled("Stopped on request.")
    return NativeError(
        f"llama.cpp failed in a pass over {tokens} tokens (status {status}): "
        f"{library.first_error()}. Run with -v to see its log."
    )


class NativeCache(ABC):
    """A cache of one text, and its passes. `native_seconds`: total time of native passes."""

    capacity: int
    _native: NativeContext

    def __init__(self, model: Model) -> None:
        self.model = model
        self.tokens: list[int] = []
        self.native_seconds = 0.0

    @property
    def handle(self) -> Any:
        return self._native.handle

    def close(self) -> None:
        self._native.close()

    def cancel(self) -> None:
        self._native.cancel()

    def resume(self) -> None:
        self._native.resume()

    def set_threads(self, count: int) -> None:
        self._native.set_threads(count)

    def filler(self, count: int) -> list[int]:
        """Tokens for timing, without the first ids, which may be special."""
        return [i % self.model.vocabulary.size for i in range(32, 32 + count)]

    def _decode(self, batch: Any, outputs: int) -> Rows:
        """Run a llama_batch and wait for its logits; if it raises, the cache is unchanged."""
        try:
            rows = self._native.run(batch, outputs)
        except (Cancelled, NativeError):
            self.native_seconds += self._native.seconds
            self._drop_failed()
            raise
        self.native_seconds += self._native.seconds
        return rows

    @abstractmethod
    def _drop_failed(self) -> None:
        """Drop cells that a failed pass left after `tokens`."""
