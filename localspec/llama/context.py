"""A KV cache and the passes over it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, Protocol

from localspec.decoding.sampling import Rows
from localspec.decoding.tree import ROOT, TokenTree
from localspec.errors import Cancelled, NativeError
from localspec.llama import sequence_state
from localspec.llama.batch import Batch
from localspec.llama.context_params import (
    MAX_LEAVES,
    MAX_SNAPSHOT_DRAFT,
    MAX_TREE,
    context_params,
)
from localspec.llama.hidden import HiddenStates
from localspec.llama.model import Model
from localspec.llama.native_context import NativeContext
from localspec.llama.options import LEAST_CHUNK, ModelOptions
from localspec.llama.saved_states import SavedStates
from localspec.llama.sequence_state import State
from localspec.llama.sequences import GrownTree, Sequences

REST = LEAST_CHUNK - 1


class PassWatch(Protocol):
    """Whoever decides how passes run; see `Context.watch`."""

    def chunk(self, context: int, most: int) -> int:
        """Before each chunk of a long prompt, behind so many tokens: tokens that it may have,
        LEAST_CHUNK … most, in multiples of LEAST_CHUNK."""
        ...

    def passed(self, tokens: int, context: int, seconds: float) -> None:
        """A pass over so many tokens, behind so many, took so long."""
        ...


class Context:
    """The cache of one sequence of tokens, and of a tree that is tried behind them.

    A tree is decoded in one pass (`branch`, then `keep`), or grows level by level (`grow`, then
    `settle`).

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
        self.tokens: list[int] = []
        self.native_seconds = 0.0
        self.watch: PassWatch | None = None
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
        # Tokens that the last pass left snapshots for; a snapshot serves once.
        self._undoable = 0
        self._saved = SavedStates(native.handle)
        self._sequences = Sequences(native.memory, self.max_leaves)
        self._grown = GrownTree()
        self._leaves: tuple[list[list[int]], int] = [], 1  # of the tree that `branch` decoded last
        self._batch = Batch(native.batch, self.max_leaves)
        self._hidden = HiddenStates(model, native.handle)
        self._gives_hidden = False  # whether it was ever asked to
        self._last_pass = 0  # tokens

    @property
    def handle(self) -> Any:
        """The llama_context."""
        return self._native.handle

    def told(self) -> list[str]:
        """What befell its passes since this was asked last, sentences for the user."""
        return []

    def filler(self, count: int) -> list[int]:
        """So many tokens whose passes cost what any do. The first ones of a vocabulary, which may
        be special, are left out."""
        return [i % self.model.vocabulary.size for i in range(32, 32 + count)]

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
        """Have the passes from now on run on so many threads, prompts' chunks as well."""
        self._native.set_threads(count)

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

    def extend(
        self,
        tokens: Sequence[int],
        outputs: int = 1,
        progress: Callable[[int, int], None] | None = None,
    ) -> Rows:
        """Append tokens, in chunks.

        Args:
            tokens: at least one.
            outputs: rows of logits wanted, for the last so many tokens; at most MAX_TREE + 1.
            progress: called after each chunk with tokens done and tokens to do.

        Returns:
            float32 [outputs, vocabulary], a view that the next pass overwrites.

        Raises:
            Cancelled: the chunks before are in the cache, this one is not.
            NativeError: as `_decode`.
        """
        if self._grown.tokens:
            self.settle()
        total, start = len(tokens), 0
        if total > LEAST_CHUNK:
            # A short rest joins the last chunk: by itself it would cost more, and other bits.
            while total - start > min(self._batch.capacity, (most := self._most()) + REST):
                # The last chunk has to hold every token that gives a row.
                size = min(most, total - start - outputs)
                if size < 1:
                    break
                self._decode_chain(tokens[start : start + size], 0)
                start += size
                if progress is not None:
                    progress(start, total)
            tokens = tokens[start:] if start else tokens
        rows = self._decode_chain(tokens, outputs)
        if progress is not None:
            progress(total, total)
        return rows

    def branch(self, pending: Sequence[int], tree: TokenTree) -> Rows:
        """One pass over `pending` tokens, which join the cache, and a tree behind them.

        Call `keep` next. Without branches the tree's tokens are simply appended; with branches,
        each root-to-leaf path gets a sequence id, so that llama.cpp's own mask (same sequence, not
        later) shows a node its ancestors and nothing else.

        Returns:
            float32 [1 + nodes, vocabulary]: after the last pending token, then after each node.
        """
        if tree.is_chain():
            if self.restores:
                self._saved.forget()
                self._saved.save(len(self.tokens))
            nodes = len(tree.tokens)
            rows = self.extend([*pending, *tree.tokens], 1 + nodes)
            del self.tokens[len(self.tokens) - nodes :]
            return rows
        if self._grown:
            self.settle()
        if len(pending) > 1:
            self.extend(pending[:-1], 0)
            pending = pending[-1:]
        leaves = tree.leaf_numbers()
        count = 1 + max(numbers[-1] for numbers in leaves)
        self._leaves = leaves, count
        held = len(self.tokens)
        for leaf in range(1, count):
            self._sequences.share(leaf, held)
        rows = self._decode(self._batch.tree(pending, tree, held, leaves), 1 + len(tree))
        self.tokens += pending
        return rows

    def keep(self, tree: TokenTree, path: Sequence[int]) -> None:
        """Keep a path of the tree that `branch` decoded last, and drop its other nodes."""
        held = len(self.tokens)
        kept = held + len(path)
        if tree.is_chain():
            self.tokens += tree.tokens[: len(path)]
            if len(path) < len(tree.tokens):
                if self.recurrent:
                    self.tokens += tree.tokens[len(path) :]
                    self.truncate(kept)
                else:
                    self._sequences.cut(kept)
            return
        leaves, count = self._leaves
        winner = leaves[path[-1]][0] if path else 0
        self._sequences.keep(winner, held, kept, count)
        self.tokens += [tree.tokens[node] for node in path]

    def grow(
        self, tokens: Sequence[int], parents: Sequence[int], pending: Sequence[int] = ()
    ) -> Rows:
        """Decode the next nodes of a draft tree behind `tokens`, all in one pass.

        Nothing is decoded twice, so a tree may grow level by level, each level chosen from the
        rows of the one before. `settle` ends it. So does any other pass and any cut, and so does a
        pass that fails: then all of its nodes are dropped.

        Args:
            tokens: one for each new node, 1 … MAX_TREE. Nodes are numbered in the order they come,
                over all calls, from 0.
            parents: the node that each hangs from, of an earlier call, or ROOT.
            pending: tokens that join `tokens` in the same pass, before the first nodes; these are
                a chain then, or none.

        Returns:
            float32 [new nodes, vocabulary], a view that the next pass overwrites; with `pending`
            one row more, the first one, after the last of those.

        Raises:
            ValueError: more branches than `max_leaves`, or no such parents.
            Cancelled, NativeError: as `extend`.
        """
        grown, held, sequences = self._grown, len(self.tokens), self._sequences
        known = len(grown)
        if pending:
            if known or list(parents) != list(range(ROOT, len(tokens) - 1)):
                raise ValueError("pending tokens come before a tree that begins with a chain")
            rows = self.extend([*pending, *tokens], 1 + len(tokens))
            del self.tokens[len(self.tokens) - len(tokens) :]
            for token, parent in zip(tokens, parents, strict=True):
                grown.add(token, parent)
            self._undoable = 0
            return rows
        if not 0 < len(tokens) == len(parents) <= MAX_TREE:
            raise ValueError(f"{len(tokens)} nodes with {len(parents)} parents")
        if not all(ROOT <= parent < known for parent in parents):
            raise ValueError(f"a parent that was not decoded before: {list(parents)} of {known}")
        if grown.leaves_with(parents) > self.max_leaves:
            raise ValueError(f"more than {self.max_leaves} branches")
        for token, parent in zip(tokens, parents, strict=True):
            parted = grown.add(token, parent)
            if parted is not None:
                source, depth = parted
                sequences.share(grown.leaves - 1, held)
                sequences.copy(source, grown.leaves - 1, held, held + depth)
        positions = [held + depth - 1 for depth in grown.depths[known:]]
        batch = self._batch.nodes(tokens, positions, grown.sequences[known:])
        rows = self._decode(batch, len(tokens))
        self._undoable = 0
        return rows

    def settle(self, path: Sequence[int] = ()) -> None:
        """End a tree that `grow` began: keep a path of nodes, from ROOT down, and drop the others.

        The cache is then as if `extend` had read the path. A recurrent memory may lose more, as
        in `truncate`.

        Raises:
            ValueError: no such path.
        """
        grown, held = self._grown, len(self.tokens)
        if not grown.is_path(path):
            raise ValueError(f"not a path from the root: {list(path)}")
        if not grown:
            return
        self._grown = GrownTree()
        if self.recurrent:  # a chain
            self.tokens += grown.tokens
            self.truncate(held + len(path))
            return
        winner = grown.sequences[path[-1]] if path else 0
        self._sequences.keep(winner, held, held + len(path), grown.leaves)
        self.tokens += [grown.tokens[node] for node in path]

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

    def _most(self) -> int:
        """Tokens of the next chunk at most."""
        most = self._batch.capacity
        return most if self.watch is None else self.watch.chunk(len(self.tokens), most)

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
