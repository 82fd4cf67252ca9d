"""A KV cache and the passes over it."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from time import perf_counter
from typing import Any

from localspec.decoding.sampling import Rows
from localspec.errors import Cancelled, NativeError
from localspec.llama import sequence_state
from localspec.llama.batch import Batch, RowBatch
from localspec.llama.context_params import (
    MAX_LEAVES,
    MAX_SNAPSHOT_DRAFT,
    MAX_TREE,
    context_params,
)
from localspec.llama.hidden import HiddenStates
from localspec.llama.model import Model
from localspec.llama.native_context import NativeContext, OverNative
from localspec.llama.options import ModelOptions
from localspec.llama.pictures import PicturePart
from localspec.llama.saved_states import SavedStates
from localspec.llama.sequence_state import State
from localspec.llama.sequences import GrownTree, Sequences
from localspec.llama.tree_passes import TreePasses


class Context(OverNative, TreePasses):
    """The cache of one sequence of tokens, and of a tree that is tried behind them.

    Attributes:
        model: whose cache this is. It must outlive the context.
        capacity: tokens the cache holds.
        tokens: what the cache holds now.
        native_seconds: seconds spent in native passes since the start.
        max_leaves: most branches of a tree; 1 where the memory is recurrent.
        max_draft: most tokens of a tree.
        recurrent: whether the memory (or a part of it) cannot be cut back token by token.
        restores: whether dropping tokens may cost a pass, because the memory is recurrent and
            llama.cpp keeps no snapshots for its architecture.
        watch: told about every pass, and asked before the chunks of a prompt; None for nobody.
    """

    def __init__(
        self,
        model: Model,
        options: ModelOptions,
        *,
        flag: ctypes.Array[ctypes.c_char] | None = None,
    ) -> None:
        """Make a cache.

        Args:
            flag: where `cancel` says so, two characters; None has them made. It must outlive the
                context.
        """
        self.model = model
        self.tokens = []
        self.native_seconds = 0.0
        self.watch = None
        stop = ctypes.create_string_buffer(2) if flag is None else flag
        params = context_params(model, options, stop)
        wanted = f"{options.context or 'default'} tokens"
        self._native = NativeContext(model, params, stop, wanted)
        try:
            self._set_up(options)
        except BaseException:
            self.close()
            raise

    def _set_up(self, options: ModelOptions) -> None:
        """All that follows from the native context."""
        model, native = self.model, self._native
        # What was asked for is what is promised; there may be more cells.
        self.capacity = min(native.cells, options.context or native.cells)
        self._snapshots = native.snapshots
        self.recurrent = model.recurrent
        self.restores = model.recurrent and not self._snapshots
        self.max_leaves = 1 if model.recurrent else MAX_LEAVES
        self.max_draft = MAX_TREE
        if model.recurrent:
            self.max_draft = self._snapshots or MAX_SNAPSHOT_DRAFT
        self._undoable = 0
        self._saved = SavedStates(native.handle)
        self._sequences = Sequences(native.memory, self.max_leaves)
        self._grown = GrownTree()
        self._leaves = [], 1
        self._batch = Batch(native.batch, self.max_leaves)
        self._hidden = HiddenStates(model, native.handle)
        self._gives_hidden = False  # whether it was ever asked to
        self._last_pass = 0  # tokens

    def told(self) -> list[str]:
        """What befell its passes since this was asked last, sentences for the user."""
        return []

    def filler(self, count: int) -> list[int]:
        """So many tokens whose passes cost what any do. The first ones of a vocabulary, which may
        be special, are left out."""
        return [i % self.model.vocabulary.size for i in range(32, 32 + count)]

    def want_hidden(self, layers: tuple[int, ...]) -> None:
        """Have the passes from now on make hidden states, for `hidden`. Costs a new reservation of
        buffers in the next pass where layers are wanted for the first time.

        Args:
            layers: 0 … `model.layers`, see `hidden`; empty for none.

        Raises:
            NativeError: llama.cpp does not give out layers of this architecture, or this build
                lacks the function.
        """
        self._gives_hidden = self._gives_hidden or bool(layers)
        self._hidden.want(layers)

    def hidden(self, outputs: int) -> dict[int, Rows]:
        """The hidden states that were asked for, of the last `outputs` tokens of the last pass, in
        the order of its rows of logits.

        Returns:
            By layer, float32 [outputs, width of the model]: what goes into layer i, and for
            i = `model.layers` what the output norm makes of the last one's result. Copies.
        """
        return self._hidden.rows(self._last_pass, outputs)

    def gather_hidden(self) -> None:
        """From now on keep what goes into the layers that were asked for, of tokens whose logits
        nobody wants, for `gathered`."""
        self._hidden.gather()

    def gathered(self) -> dict[int, Rows]:
        """The end of that: by layer, float32 [k, width of the model], of the latest tokens that
        were read for no logits since `gather_hidden`, in their order; empty without any."""
        return self._hidden.gathered()

    def show(self, part: PicturePart) -> None:
        """Append the positions of an image, which `tokens` then has by their ids.

        Raises:
            Cancelled: the chunks before are in the cache, this one is not.
            NativeError: as `_decode`, or the image is longer than a pass, which its model sees
                whole.
        """
        if self._grown.tokens:
            self.settle()
        ids, most = part.ids, self._batch.capacity
        if not part.causal and len(ids) > most:
            raise NativeError(
                f"An image has {len(ids)} positions, which need one pass, but a pass has "
                f"{most} at most. Leave it out."
            )
        batch = RowBatch(part.rows())
        if not part.causal:
            self._native.see_all(all_of_a_pass=True)
        try:
            for start in range(0, len(ids), most):
                end = min(start + most, len(ids))
                self._decode(batch.slice(start, end), 0)
                self.tokens += ids[start:end]
        finally:
            if not part.causal:
                self._native.see_all(all_of_a_pass=False)

    def truncate(self, length: int) -> None:
        """Drop the tokens from `length` on, and a tree that was grown.

        A recurrent memory that cannot go back so far is restored from a state that was saved before
        (see `checkpoint`), else cleared: `tokens` is then shorter than asked for, never different.
        """
        if self._grown.tokens:
            self.settle()
        drop = len(self.tokens) - length
        if drop <= 0:
            return
        if not self.recurrent:
            self._sequences.cut(length)
        elif drop <= self._undoable and self._sequences.remove(0, length):
            self._undoable = 0
            self._saved.cut(length)
        else:
            self._restore(length)
            return
        del self.tokens[length:]

    def checkpoint(self) -> None:
        """Make it possible to `truncate` to here, or to any later place, for a pass over a few
        tokens at most. Nothing to do for attention, whose cache can be cut anywhere.

        May be called after every token of a draft; few of the calls save anything.
        """
        if self.recurrent and self._saved.due(len(self.tokens)):
            self._saved.save(len(self.tokens))

    def discard_branches(self) -> None:
        """Drop whatever an interrupted pass left behind `tokens`, and a tree that was grown."""
        self._grown = GrownTree()
        if not self.recurrent:
            self._sequences.cut(len(self.tokens))
        elif self._native.length(0) != len(self.tokens):
            self._restore(len(self.tokens))

    def state(self) -> State:
        """The memory of `tokens` as bytes, for `set_state` of another context.

        Raises:
            NativeError: llama.cpp does not give it out.
            MemoryError: there is no room for a copy.
        """
        self.discard_branches()
        return sequence_state.copied(self._native.handle)

    def set_state(self, tokens: Sequence[int], state: State) -> None:
        """Hold these tokens instead, whose memory `state` gave.

        Raises:
            NativeError: it does not fit; the cache is empty then.
        """
        self.clear()
        if len(tokens) > self.capacity or not sequence_state.put(self._native.handle, state):
            self.clear()
            raise NativeError("llama.cpp does not take the memory of another session.")
        self.tokens += tokens

    def clear(self) -> None:
        """Forget everything."""
        self._native.clear()
        self.tokens.clear()
        self._grown = GrownTree()
        self._sequences.forget(0)
        self._undoable = 0
        self._saved.forget()

    def _before_draft(self) -> None:
        if self.restores:
            self._saved.forget()
            self._saved.save(len(self.tokens))

    def _decode_chain(self, tokens: Sequence[int], outputs: int) -> Rows:
        if self._gives_hidden and self._hidden.final and 0 < outputs < len(tokens):
            # Every token of the pass that makes final states is an output, and those are few.
            self._decode_chain(tokens[:-outputs], 0)
            tokens = tokens[-outputs:]
        rows = self._decode(self._batch.chain(tokens, outputs), outputs)
        if self._gives_hidden:
            self._hidden.passed(len(tokens) - outputs)
        self.tokens += tokens
        if self._snapshots:
            self._undoable = min(self._snapshots, len(tokens) - 1)
        return rows

    def _decode(self, batch: Any, outputs: int) -> Rows:
        """Run a batch and wait for its logits.

        Raises:
            Cancelled: `cancel` was called.
            CacheFull: there is no room in the cache.
            NativeError: a failure in llama.cpp.
        """
        if self._gives_hidden:
            self._hidden.prepare(outputs > 0)
        self._last_pass = int(batch.n_tokens)
        started = perf_counter()
        try:
            address = self._native.decode(batch)
        except (Cancelled, NativeError):
            self.native_seconds += perf_counter() - started
            self.discard_branches()
            raise
        seconds = perf_counter() - started
        self.native_seconds += seconds
        if self.watch is not None:
            self.watch.passed(self._last_pass, len(self.tokens), seconds)
        return self._native.rows(address, outputs)

    def _restore(self, length: int) -> None:
        """Go back to `length` tokens by way of a saved state, or to none at all."""
        held = self._saved.restore(length)
        if held is None or not self._sequences.remove(0, held):
            self.clear()
            return
        self._undoable = 0
        again = self.tokens[held:length]
        del self.tokens[held:]
        if again:
            self.extend(again, 0)
