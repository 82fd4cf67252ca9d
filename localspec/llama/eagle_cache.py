"""The KV cache of an EAGLE-3 head, which reads the target's hidden states beside the tokens.

At place P an EAGLE-3 head (Li et al. 2025, section 3) reads the pair of the token at P + 1 and a
state of P, and says what follows that token. Behind text that the target has read, the state is
made of what went into three of the target's layers at P (`feed`); behind a token that is only
drafted it is what the head itself made of the pair before.
"""

from __future__ import annotations

from collections.abc import Sequence

import llama_cpp
import numpy as np
import numpy.typing as npt
from llama_cpp import llama_cpp_ext

from localspec.decoding.sampling import Rows
from localspec.decoding.tree import ROOT
from localspec.errors import Cancelled, NativeError
from localspec.llama import library
from localspec.llama.fed_cache import PIECE, FedCache
from localspec.llama.sequences import GrownTree
from localspec.llama.state_batch import StateBatch


class EagleCache(FedCache):
    """What a head has read of a text; implements `localspec.drafters.draft_model.BranchingCache`.

    Of the first token there is no pair to read. Among `tokens` are drafted ones as well.

    Args:
        model: the head, architecture eagle3.
        target, options: see `FedCache`.

    Attributes:
        width: numbers of a state.
    """

    max_draft = PIECE - 1
    behind = 1

    def _state_width(self) -> int:
        """Numbers of a state."""
        return self.model.width

    def _set_up(self) -> None:
        width = self.width = self._state_width()
        llama_cpp_ext.llama_set_embeddings_nextn(self._native.handle, True, True)
        self._batch = StateBatch(width, PIECE)
        self._states = np.empty((self.capacity, width), np.float32)  # by place; sparse memory
        self._own = np.zeros(width, np.float32)  # what the head made of the last pair
        self._grown = GrownTree()
        self._nodes: list[npt.NDArray[np.float32]] = []  # the same, of each node of the tree

    def _forget(self) -> None:
        super()._forget()
        self._true = 0  # so many of `tokens` were read with the target's states

    def _go_back(self, length: int) -> None:
        del self._text[length:]
        self._made = length
        self.truncate(min(len(self.tokens), length))

    def _begin_at(self, context: Sequence[int], place: int) -> None:
        super()._begin_at(context, place)
        self._true = len(self.tokens)

    def _empty(self) -> None:
        super()._empty()
        self._grown, self._nodes = GrownTree(), []

    def _take(self, inputs: Rows) -> None:
        """Make the states of the next places."""
        status = llama_cpp.llama_encode(self._native.handle, self._batch.states(inputs))
        if status:
            raise _failure(status, len(inputs))
        self._states[self._made : self._made + len(inputs)] = self._own_rows(len(inputs))

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

    def clear(self) -> None:
        super().clear()
        self._own = np.zeros_like(self._own)

    def _states_of(self, first: int, count: int) -> tuple[Rows, int]:
        """The state of the pair of each of these tokens, and how many of them, the first ones, are
        the target's: the others get the head's latest."""
        # The pair of the token at i has the state of i - 1.
        place = first - 1
        known = 0
        if place >= self._start and self._text:
            known = max(0, min(count, len(self._text) - place))
        if known and place + known > self._made:
            self._take_in()
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

    def _dropped(self) -> None:
        self._grown, self._nodes = GrownTree(), []
        super()._dropped()

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
