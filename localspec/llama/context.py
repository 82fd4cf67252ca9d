from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

import llama_cpp
import numpy as np

from localspec.decoding.interfaces import HIDDEN_BEFORE, PassRequest, PassResult
from localspec.decoding.sampling import Rows
from localspec.decoding.tree import TokenTree
from localspec.errors import NativeError
from localspec.llama.batch import PassPart, chain
from localspec.llama.model import Model
from localspec.llama.native_context import CacheFull, NativeCache, SharedContext
from localspec.llama.options import MAX_SNAPSHOT_DRAFT, MAX_TREE, MIN_CHUNK, ModelOptions
from localspec.llama.pictures import Picture, PicturePart, with_picture_ids
from localspec.llama.sequences import (
    SavedStates,
    Sequences,
    State,
    copy_state,
    restore_state,
    sequence_copy,
    shared_prefix,
)

Passes: TypeAlias = Callable[[PassPart], tuple[Rows, float]]
"""Decodes a part, possibly with others'; returns its rows, and its share of the seconds."""
MAX_REMAINDER = MIN_CHUNK - 1


class Context(NativeCache):
    """The KV cache of one text and of a draft tree after it: some `sequences` of a shared context,
    by default those of its first answer. Implements `localspec.decoding.interfaces.Target`.

    A tree is decoded in one pass (`branch`, then `commit`).

    Args:
        passes: runs its passes, possibly with others'; the only hidden states are then layer
            inputs.
        make_room: see `set_state`.

    Attributes:
        max_leaves, max_draft: most branches and tokens of a tree.
        recurrent: whether the memory, or a part, cannot be truncated token by token; `restores`:
            whether truncation may cost a pass.
        common: number of leading tokens that it shares with another text.
        chunk: most tokens of a prompt's next chunk, a multiple of MIN_CHUNK; None for a whole pass.
        progress: called by `forward` after each chunk of a prompt, as by `extend`.
        pictures: the images of the text that `forward` reads.
    """

    _native: SharedContext
    progress: Callable[[int, int], None] | None = None
    pictures: Sequence[Picture] = ()
    _layers: tuple[int, ...] = ()  # whose hidden states were requested

    def __init__(
        self,
        shared: SharedContext,
        sequences: Sequences | None = None,
        passes: Passes | None = None,
        chunk: Callable[[], int] | None = None,
        make_room: Callable[[], bool] | None = None,
    ) -> None:
        super().__init__(shared.model)
        self.capacity, model = shared.capacity, shared.model
        self._native = self.shared = shared
        self.sequences = sequences or shared.answer_sequences(0)
        self._passes, self.chunk, self._make_room = passes, chunk, make_room
        self.common = 0
        self._snapshots = shared.snapshots
        self.recurrent = model.recurrent
        self.restores = model.recurrent and not self._snapshots
        self.max_leaves = self.sequences.count
        self.max_draft = MAX_TREE
        if model.recurrent:
            self.max_draft = self._snapshots or MAX_SNAPSHOT_DRAFT
        # Tokens for which the last pass left snapshots; each can be used once.
        self._undoable = 0
        self._saved = SavedStates(shared.handle)
        self._leaves: list[list[int]] = []  # of the tree that `branch` decoded last
        self._states: dict[int, Rows] = {}  # of the last pass
        self._collected: dict[int, Rows] | None = None  # inputs of tokens without logits

    @classmethod
    def open(
        cls,
        model: Model,
        options: ModelOptions,
        *,
        flag: ctypes.Array[ctypes.c_char] | None = None,
    ) -> Context:
        """A cache over a new native context; `flag`: see `NativeContext`."""
        return cls(SharedContext(model, replace(options, parallel=1), flag=flag))

    def take_notices(self) -> list[str]:
        """Return and clear notices for the user about its passes."""
        return []

    def begin_with(self, source: int, tokens: Sequence[int]) -> None:
        """Share the first tokens of another sequence, without copying cells. The cache must be
        empty."""
        assert not self.tokens, "it holds another text"
        if tokens:
            sequence_copy(self._native.memory, source, self.sequences.first, 0, len(tokens))
            self.tokens += tokens
            self.common = len(tokens)

    # The target's part in a step.

    @property
    def why_not_draft(self) -> str | None:
        """Why this model gets no drafts; None if it does."""
        if not self.max_draft:
            return "--exact is on, and no pass over several tokens rounds like single ones here"
        if not self.restores:
            return None
        return (
            "the memory of this recurrent model cannot be truncated token by token, and llama.cpp "
            "keeps no snapshots of it"
        )

    def seen(self, prompt: Sequence[int]) -> Sequence[int]:
        """The prompt with the ids of its images."""
        return with_picture_ids(prompt, self.pictures)

    def cached_length(self, prompt: Sequence[int]) -> int:
        """Length of the prefix of a prompt that is in the cache."""
        return shared_prefix(self.tokens, self.seen(prompt))

    def reuse(self, prompt: Sequence[int]) -> int:
        """Keep the tokens that the cache shares with a prompt, except its last one; returns how
        many."""
        kept = min(self.cached_length(prompt), len(prompt) - 1)
        for picture in self.pictures:
            if picture.start < kept < picture.end:  # a part may need a single pass
                kept = picture.start
        self.truncate(kept)
        return len(self.tokens)

    def forward(self, request: PassRequest) -> PassResult:
        before, tree, hidden = self.native_seconds, request.tree, request.hidden
        if hidden != self._layers:
            self.request_hidden(hidden)
        self._collected = {} if hidden else None
        for picture in self.pictures:
            if (held := len(self.tokens)) <= picture.start:
                if held < picture.start:
                    self.extend(request.context[held : picture.start], 0, self.progress)
                self.append_image(picture.part)
        pending = request.context[len(self.tokens) :]
        if tree.tokens:
            rows = self.branch(pending, tree)
        else:
            rows = self.extend(pending, 1, self.progress if len(pending) > 1 else None)
        seconds = self.native_seconds - before
        if not hidden:
            return PassResult(rows, seconds)
        inputs, self._collected = self._collected, None
        return PassResult(rows, seconds, self.hidden(1 + len(tree)), inputs or {})

    def rollback(self, context: Sequence[int]) -> None:
        self.discard_branches()
        self.truncate(self.cached_length(context))

    # Hidden states.

    def request_hidden(self, layers: tuple[int, ...]) -> None:
        """Provide hidden states of layers 0 … `model.layers` in later passes; see `hidden`. A
        NativeError if llama.cpp does not provide them for this architecture."""
        self._native.hidden.request(layers)
        self._layers = layers

    def hidden(self, outputs: int) -> dict[int, Rows]:
        """Hidden states of the last `outputs` tokens of the last pass, by layer: float32 [outputs,
        width]. Key i is the input of layer i, `model.layers` the output norm's result."""
        return {layer: self._states[layer][-outputs:] for layer in self._layers}

    def _collect(self, silent: int, found: dict[int, Rows]) -> None:
        """Store inputs after a pass over a chain, whose first `silent` tokens gave no logits."""
        for layer in {*self._layers} - {self.model.layers}:
            rows = self._states[layer][:silent]
            before = found.get(layer, rows[:0])
            found[layer] = np.concatenate((before, rows))[-HIDDEN_BEFORE:]

    # Passes.

    def extend(
        self,
        tokens: Sequence[int],
        outputs: int = 1,
        progress: Callable[[int, int], None] | None = None,
    ) -> Rows:
        """Append one or more tokens, in chunks. Returns logits after the last `outputs` tokens, at
        most MAX_TREE + 1: float32 [outputs, vocabulary], a view that the next pass overwrites.
        `progress` is called after each chunk with tokens done and total. On Cancelled, CacheFull
        or NativeError the cache holds the chunks before the failed one."""
        total, start = len(tokens), 0
        if total > MIN_CHUNK:
            # A short remainder joins the last chunk: alone it costs more, and rounds differently.
            while total - start > min(
                self._native.batch, (most := self._max_chunk()) + MAX_REMAINDER
            ):
                # The last chunk has to contain every token with an output.
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
        """Run a pass over `pending` tokens, which join the cache, and a tree; call `commit` next.
        Returns float32 [1 + nodes, vocabulary]: after the last pending token, then each node."""
        if tree.is_chain():
            if self.restores:
                self._saved.forget()
                self._saved.save(len(self.tokens))
            nodes = len(tree.tokens)
            rows = self.extend([*pending, *tree.tokens], 1 + nodes)
            del self.tokens[len(self.tokens) - nodes :]
            return rows
        if len(pending) > 1:
            self.extend(pending[:-1], 0)
            pending = pending[-1:]
        leaves = tree.leaf_numbers()
        count = 1 + max(numbers[-1] for numbers in leaves)
        self._leaves = leaves
        held, first = len(self.tokens), self.sequences.first
        for leaf in range(1, count):
            self.sequences.share(leaf, held)
        ids = [range(first, first + count), *([first + n for n in numbers] for numbers in leaves)]
        positions = [held, *(held + depth for depth in tree.depths)]
        rows = self._decode_part(PassPart([*pending, *tree.tokens], positions, ids, 1 + len(tree)))
        self.tokens += pending
        return rows

    def commit(self, tree: TokenTree, path: Sequence[int]) -> None:
        """Keep a path of the tree that `branch` decoded, and drop its other nodes."""
        held = len(self.tokens)
        kept = held + len(path)
        if tree.is_chain():
            self.tokens += tree.tokens[: len(path)]
            if len(path) < len(tree.tokens):
                if self.recurrent:
                    self.tokens += tree.tokens[len(path) :]
                    self.truncate(kept)
                else:
                    self.sequences.cut(kept)
            return
        winner = self._leaves[path[-1]][0] if path else 0
        self.sequences.keep(winner, held, kept)
        self.tokens += [tree.tokens[node] for node in path]

    def append_image(self, part: PicturePart) -> None:
        """Append the positions of an image, by their ids. Raises as `extend`, and NativeError for a
        part that needs a single pass but is too long for one."""
        ids, most = part.ids, self._native.batch
        if not part.causal and len(ids) > most:
            raise NativeError(
                f"An image has {len(ids)} positions, which need a single pass, but a pass "
                f"has at most {most}. Leave it out."
            )
        rows = np.ascontiguousarray(part.rows(), np.float32)
        if not part.causal:
            self._native.set_bidirectional(on=True)
        try:
            for start in range(0, len(ids), most):
                self._decode(self._native.arrays.rows(rows[start : start + most]), 0)
                self.tokens += ids[start : start + most]
        finally:
            if not part.causal:
                self._native.set_bidirectional(on=False)

    # Truncation.

    def holds(self, length: int) -> bool:
        """Whether the first `length` tokens can be continued: llama.cpp gives cells that a sliding
        window has left to other tokens, of any text."""
        least = llama_cpp.llama_memory_seq_pos_min(self._native.memory, self.sequences.first)
        window = llama_cpp.llama_model_n_swa(self.model.handle)
        return bool(least <= max(0, length + 1 - window))

    def truncate(self, length: int) -> None:
        """Drop the tokens from `length` on. A memory that cannot be truncated that far is restored
        from a checkpoint or cleared: `tokens` may then be shorter."""
        drop = len(self.tokens) - length
        if drop <= 0:
            return
        if not self.recurrent:
            length = length if self.holds(length) else 0
            self.sequences.cut(length)
        elif drop <= self._undoable and self.sequences.remove(0, length):
            self._undoable = 0
            self._saved.cut(length)
        else:
            self._restore(length)
            return
        del self.tokens[length:]
        self.common = min(self.common, length)

    def checkpoint(self) -> None:
        """Make `truncate` to here or later cheap. Can be called after every token."""
        if self.recurrent and self._saved.due(len(self.tokens)):
            self._saved.save(len(self.tokens))

    def discard_branches(self) -> None:
        """Drop cells after `tokens` that an interrupted pass left."""
        if not self.recurrent:
            self.sequences.cut(len(self.tokens))
        elif self._native.length(0) != len(self.tokens):
            self._restore(len(self.tokens))

    def state(self) -> State:
        """The cache's contents as bytes; a NativeError if llama.cpp does not provide them."""
        self.discard_branches()
        return copy_state(self._native.handle, self.sequences.first)

    def set_state(self, tokens: Sequence[int], state: State) -> None:
        """Replace the contents with these tokens and their state. If they do not fit, the cache is
        empty and a NativeError is raised: a CacheFull if `make_room`, which frees cells of other
        texts, cannot free any."""
        self.clear()
        fits = len(tokens) <= self.capacity
        while not (fits and restore_state(self._native.handle, state, self.sequences.first)):
            self.clear()
            if self._make_room is None:
                raise NativeError("llama.cpp does not accept the state of another session.")
            if not (fits and self._make_room()):
                raise CacheFull("There is no room for the state of another session.")
        self.tokens += tokens

    def clear(self) -> None:
        self.sequences.cut(0)
        self.tokens.clear()
        self.common = 0
        self._undoable = 0
        self._saved.forget()

    def _max_chunk(self) -> int:
        most = self._native.batch
        return most if self.chunk is None else min(most, self.chunk())

    def _decode_chain(self, tokens: Sequence[int], outputs: int) -> Rows:
        if self._native.hidden.final and 0 < outputs < len(tokens):
            # In a pass with final states every token is an output, and the outputs are limited.
            self._decode_chain(tokens[:-outputs], 0)
            tokens = tokens[-outputs:]
        held = len(self.tokens)
        rows = self._decode_part(chain(tokens, outputs, held, self.sequences.first))
        if self._collected is not None and len(tokens) > outputs:
            self._collect(len(tokens) - outputs, self._collected)
        self.tokens += tokens
        if self._snapshots:
            self._undoable = min(self._snapshots, len(tokens) - 1)
        return rows

    def _decode_part(self, part: PassPart) -> Rows:
        native, outputs = self._native, part.outputs
        if native.chosen is not None:
            native.chosen.read(part.tokens)
        if self._passes is not None:
            if self._layers:
                self._states = {}
                part = part._replace(inputs=self._states)
            rows, seconds = self._passes(part)
            self.native_seconds += seconds
            return rows
        if native.hidden.final:
            native.hidden.provide_final(on=outputs > 0)
        rows = self._decode(native.arrays.fill((part,)), outputs)
        if self._layers:
            self._states = native.hidden.rows(0, len(part.tokens), outputs)
        return rows

    def _drop_failed(self) -> None:
        self.discard_branches()

    def _restore(self, length: int) -> None:
        held = self._saved.restore(length)
        if held is None or not self.sequences.remove(0, held):
            self.clear()
            return
        self._undoable = 0
        again = self.tokens[held:length]
        del self.tokens[held:]
        if again:
            self.extend(again, 0)
