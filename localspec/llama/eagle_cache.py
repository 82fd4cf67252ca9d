"""The KV cache of an EAGLE-3 head, which reads the target's hidden states beside the tokens.

At place P an EAGLE-3 head (Li et al. 2025, section 3) reads the pair of the token at P + 1 and a
state of P, and says what follows that token. Behind text that the target has read, the state is
made of what went into three of the target's layers at P (`feed`); behind a token that is only
drafted it is what the head itself made of the pair before.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt
from llama_cpp import llama_cpp_ext

from localspec.decoding.interfaces import HIDDEN_BEFORE
from localspec.decoding.sampling import Rows
from localspec.decoding.tree import ROOT
from localspec.errors import Cancelled, NativeError
from localspec.llama import library
from localspec.llama.context_params import MAX_LEAVES, context_params
from localspec.llama.model import Model
from localspec.llama.native_context import NativeContext
from localspec.llama.options import ModelOptions
from localspec.llama.sequences import GrownTree, Sequences
from localspec.llama.state_batch import StateBatch
from localspec.llama.tree_passes import PassWatch

PIECE = 72
"""Most tokens of a pass. llama.cpp makes room for a row of logits for each of them."""


class EagleCache:
    """What a head has read of a text; implements `localspec.drafters.draft_model.BranchingCache`.

    `tokens` are those of the text that are read, from its beginning on. Of the first one there is
    no pair to read, and where states of a part of the text are lacking (the target had read it
    before), the head begins behind that part: it sees less of the text then.

    Args:
        model: the head, architecture eagle3; it must outlive the cache.
        target: the llama_context of the target, whose embeddings and output matrix are used where
            the head has none. It must outlive the cache.
        options: of the cache.

    Attributes:
        tokens: what the cache holds, drafted tokens included.
        capacity: tokens that it holds.
        native_seconds: seconds in native passes so far.
        watch: told about every pass; None for nobody.
        width: numbers of a state.
        beside: caches of the same head for other answers, whose threads are as many.
    """

    recurrent = False
    max_leaves = MAX_LEAVES
    max_draft = PIECE - 1

    def __init__(self, model: Model, target: Any, options: ModelOptions) -> None:
        self.model = model
        self.width = self._state_width()
        self.tokens: list[int] = []
        self.native_seconds = 0.0
        self.watch: PassWatch | None = None
        self.beside: Sequence[EagleCache] = ()
        stop = ctypes.create_string_buffer(2)
        params = context_params(model, options, stop)
        params.n_batch = params.n_ubatch = PIECE
        self._configure(params, target)
        wanted = f"{options.context or 'default'} tokens"
        self._native = NativeContext(model, params, stop, wanted)
        self.capacity = min(self._native.cells, options.context or self._native.cells)
        try:
            self._set_up()
        except BaseException:
            self.close()
            raise

    def _state_width(self) -> int:
        """Numbers of a state."""
        return self.model.width

    def _configure(self, params: Any, target: Any) -> None:
        """What the native context is asked for with, beside what any is."""
        params.ctx_other = target

    def _set_up(self) -> None:
        """All that follows from the native context."""
        width = self.width
        llama_cpp_ext.llama_set_embeddings_nextn(self._native.handle, True, True)
        self._sequences = Sequences(self._native.memory, self.max_leaves)
        self._batch = StateBatch(width, PIECE)
        self._states = np.empty((self.capacity, width), np.float32)  # by place; sparse memory
        self._queue: list[Rows] = []  # layers' inputs that no state is made of yet
        self._own = np.zeros(width, np.float32)  # what the head made of the last pair
        self._grown = GrownTree()
        self._nodes: list[npt.NDArray[np.float32]] = []  # the same, of each node of the tree
        self._forget()

    def _forget(self) -> None:
        self._text: list[int] = []  # whose states are known, but for those before `_start`
        self._start = 0  # the first place whose state is known
        self._made = 0  # the first whose state is not made yet
        self._base = 0  # the token that is at position 0 of the native cache
        self._true = 0  # so many of `tokens` were read with the target's states
        self._queue.clear()

    def close(self) -> None:
        """Free the cache."""
        self._native.close()

    def cancel(self) -> None:
        """Make the pass that runs, or the next one, raise Cancelled. From any thread."""
        self._native.cancel()

    def resume(self) -> None:
        """Take a cancellation back."""
        self._native.resume()

    def set_threads(self, count: int) -> None:
        """Have the passes from now on run on so many threads."""
        for cache in (self, *self.beside):
            cache._native.set_threads(count)

    def filler(self, count: int) -> list[int]:
        """So many tokens to be measured with."""
        return [i % self.model.vocabulary.size for i in range(32, 32 + count)]

    # The target's states.

    def begin(self, prompt: Sequence[int]) -> None:
        """Another text: states of what the two begin with stay."""
        text, agreed = self._text, 0
        most = min(len(text), len(prompt))
        while agreed < most and text[agreed] == prompt[agreed]:
            agreed += 1
        if agreed == len(text):
            return
        if agreed <= self._start:
            self.clear()
            return
        self._make_states()
        del text[agreed:]
        self._made = agreed
        self.truncate(min(len(self.tokens), agreed))

    def feed(self, context: Sequence[int], inputs: Rows) -> None:
        """Take what went into the layers, behind the tokens of a text before its last one.

        Args:
            context: begins with the text of `begin`.
            inputs: float32 [n, layers × width of the target].
        """
        end = len(context) - 1
        first, known = end - len(inputs), len(self._text)
        if first > known or not known:
            self._begin_at(context, first)
        elif first < known:
            inputs = inputs[known - first :]
        self._queue.append(inputs)
        self._text += context[len(self._text) : end]
        # What nobody asked for is not kept for ever.
        late = end - self._made - HIDDEN_BEFORE
        if late > 0:
            left = np.concatenate(self._queue)[late:]
            self._begin_at(context, end - HIDDEN_BEFORE)
            self._queue.append(left)

    def _begin_at(self, context: Sequence[int], place: int) -> None:
        """Nothing before a place is known."""
        self._native.clear()
        self._sequences.forget(0)
        self._grown, self._nodes = GrownTree(), []
        self._forget()
        self._start = self._made = place
        self._base = place + 1
        self.tokens[:] = context[: place + 1]
        self._true = len(self.tokens)
        self._text = list(context[: len(context) - 1])

    def _make_states(self) -> None:
        """Of all layers' inputs that wait for it."""
        if not self._queue:
            return
        inputs = np.ascontiguousarray(np.concatenate(self._queue), np.float32)
        self._queue.clear()
        self._encode(inputs)

    def _encode(self, inputs: Rows) -> None:
        """Make the states of the next places of what the target gave there."""
        started = perf_counter()
        try:
            for first in range(0, len(inputs), PIECE):
                piece = inputs[first : first + PIECE]
                status = llama_cpp.llama_encode(self._native.handle, self._batch.states(piece))
                if status:
                    self._queue.append(inputs[first:])
                    raise _failure(status, len(piece))
                self._states[self._made : self._made + len(piece)] = self._own_rows(len(piece))
                self._made += len(piece)
        finally:
            self.native_seconds += perf_counter() - started

    # Passes.

    def extend(self, tokens: Sequence[int], outputs: int = 1) -> Rows:
        """Append tokens; logits after the last `outputs` of them, as `Context.extend`."""
        if self._grown.tokens:
            self.settle()
        start, total = 0, len(tokens)
        while total - start > PIECE:
            size = min(PIECE, total - start - outputs)
            self._chain(tokens[start : start + size], 0)
            start += size
        return self._chain(tokens[start:], outputs)

    def _chain(self, tokens: Sequence[int], outputs: int) -> Rows:
        held, count = len(self.tokens), len(tokens)
        states, known = self._states_of(held, count)
        position = held - self._base
        rows = self._read(tokens, states, range(position, position + count), [0] * count, outputs)
        if outputs:
            self._own = self._own_rows(count)[-1]
        if self._true == held:
            self._true += known
        self.tokens += tokens
        return rows

    def look(self, context: Sequence[int], count: int) -> Rows:
        """Logits after the tokens before the last one of a text, so many of them, read right behind
        what the cache holds; it stays as it was."""
        first = len(context) - 1 - count
        states, known = self._states_of(first, count)
        assert known == count, "states of the text are known"
        position = len(self.tokens) - self._base
        try:
            return self._read(
                context[first:-1], states, range(position, position + count), [0] * count, count
            )
        finally:
            self._sequences.cut(position)

    def known_from(self) -> int:
        """The first place whose state is known."""
        return self._start

    def grow(
        self, tokens: Sequence[int], parents: Sequence[int], pending: Sequence[int] = ()
    ) -> Rows:
        """As `Context.grow`; a pass with pending tokens has no nodes yet, as their states come from
        it."""
        grown, known = self._grown, len(self._grown)
        if pending:
            if known or tokens:
                raise ValueError("a head reads pending tokens before anything that is drafted")
            return self.extend(pending)
        if grown.leaves_with(parents) > self.max_leaves:
            raise ValueError(f"more than {self.max_leaves} branches")
        base = len(self.tokens) - self._base
        states = np.stack(
            [self._own if parent == ROOT else self._nodes[parent] for parent in parents]
        )
        for token, parent in zip(tokens, parents, strict=True):
            parted = grown.add(token, parent)
            if parted is not None:
                source, depth = parted
                self._sequences.share(grown.leaves - 1, base)
                self._sequences.copy(source, grown.leaves - 1, base, base + depth)
        positions = [base + depth - 1 for depth in grown.depths[known:]]
        rows = self._read(tokens, states, positions, grown.sequences[known:], len(tokens))
        self._nodes += list(self._own_rows(len(tokens)))
        return rows

    def settle(self, path: Sequence[int] = ()) -> None:
        """End the tree. All of it is dropped, as accepted tokens are read again with the target's
        states."""
        if self._grown.tokens:
            self._grown, self._nodes = GrownTree(), []
            self._sequences.cut(max(0, len(self.tokens) - self._base))

    def drop_drafted(self) -> None:
        """Drop what was read with states that the head made itself."""
        self.truncate(self._true)

    def truncate(self, length: int) -> None:
        """Drop the tokens from `length` on, and the tree."""
        self.settle()
        if length >= len(self.tokens):
            return
        if length < self._base:
            self._begin_anew(length)
            return
        self._sequences.cut(length - self._base)
        del self.tokens[length:]
        self._true = min(self._true, length)

    def _begin_anew(self, length: int) -> None:
        """Drop everything that was read, and keep the states that are known before a length."""
        if length <= self._start:
            self.clear()
            return
        # The token behind the first known state is the first that can be read.
        self._sequences.cut(0)
        del self.tokens[self._start + 1 :]
        self._base = self._true = len(self.tokens)

    def checkpoint(self) -> None:
        """Nothing: attention can be cut anywhere."""

    def clear(self) -> None:
        """Forget everything."""
        self._native.clear()
        self._sequences.forget(0)
        self._grown, self._nodes = GrownTree(), []
        self.tokens.clear()
        self._own = np.zeros_like(self._own)
        self._forget()

    def _states_of(self, first: int, count: int) -> tuple[Rows, int]:
        """The state of the pair of each of these tokens, and how many of them, the first ones, are
        the target's: the others get the head's latest."""
        # The pair of the token at i has the state of i - 1.
        place = first - 1
        known = 0
        if place >= self._start and self._text:
            known = max(0, min(count, len(self._text) - place))
        if known and place + known > self._made:
            self._make_states()
        states = np.empty((count, self.width), np.float32)
        states[:known] = self._states[place : place + known] if known else 0.0
        states[known:] = self._own
        return states, known

    def _read(
        self,
        tokens: Sequence[int],
        states: Rows,
        positions: Sequence[int],
        sequences: Sequence[int],
        outputs: int,
    ) -> Rows:
        """One pass; logits after the last `outputs` tokens."""
        batch = self._batch.fill(tokens, states, positions, sequences, outputs)
        rows = self._decode(batch, len(tokens) if outputs else 0)
        return rows[-outputs:] if outputs else rows

    def _decode(self, batch: Any, outputs: int) -> Rows:
        """As `Context._decode`; nothing of a pass that fails stays."""
        started = perf_counter()
        try:
            address = self._native.decode(batch)
        except (Cancelled, NativeError):
            self.native_seconds += perf_counter() - started
            self._grown, self._nodes = GrownTree(), []
            self._sequences.cut(max(0, len(self.tokens) - self._base))
            raise
        seconds = perf_counter() - started
        self.native_seconds += seconds
        if self.watch is not None:
            self.watch.passed(int(batch.n_tokens), len(self.tokens), seconds)
        return self._native.rows(address, outputs)

    def _own_rows(self, count: int) -> Rows:
        """The states that the last pass made of its so many tokens; copies."""
        found = llama_cpp_ext.llama_get_embeddings_nextn(self._native.handle)
        if not found:
            raise NativeError(
                "llama.cpp gave no states of the head. Run with -v to see its log, or leave the "
                "head out with --draft none."
            )
        rows: Rows = np.ctypeslib.as_array(found, (count, self.width)).copy()
        return rows


def _failure(status: int, count: int) -> Exception:
    if status == 2:
        return Cancelled("Stopped on request.")
    return NativeError(
        f"llama.cpp failed over the states of {count} tokens (status {status}): "
        f"{library.complaint() or 'no reason given'}. Run with -v to see its log."
    )
