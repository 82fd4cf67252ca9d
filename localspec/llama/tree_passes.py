"""Which passes read a text, and a tree that is tried behind it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from localspec.decoding.sampling import Rows
from localspec.decoding.tree import ROOT, TokenTree
from localspec.llama.batch import Batch
from localspec.llama.context_params import MAX_TREE
from localspec.llama.options import LEAST_CHUNK
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


class TreePasses(ABC):
    """Reads tokens in chunks, and trees with a sequence id for each branch.

    A tree is decoded in one pass (`branch`, then `keep`), or grows level by level (`grow`, then
    `settle`). How a pass is made, and how a cache goes back, is a subclass's.

    Attributes:
        tokens: what the cache holds now.
        max_leaves: most branches of a tree; 1 where the memory is recurrent.
        recurrent: whether the memory (or a part of it) cannot be cut back token by token.
        watch: told about every pass, and asked before the chunks of a prompt; None for nobody.
    """

    tokens: list[int]
    max_leaves: int
    recurrent: bool
    watch: PassWatch | None
    _batch: Batch
    _sequences: Sequences
    _grown: GrownTree
    _leaves: tuple[list[list[int]], int]
    """Of the tree that `branch` decoded last."""
    _undoable: int
    """Tokens that the last pass left snapshots for; a snapshot serves once."""

    @abstractmethod
    def truncate(self, length: int) -> None:
        """Drop the tokens from `length` on, and a tree that was grown."""

    @abstractmethod
    def _decode(self, batch: Any, outputs: int) -> Rows:
        """Run a batch and wait for its logits."""

    @abstractmethod
    def _decode_chain(self, tokens: Sequence[int], outputs: int) -> Rows:
        """The same for tokens that join the text."""

    @abstractmethod
    def _before_draft(self) -> None:
        """See to a way back to here, if it takes more than cutting."""

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
            self._before_draft()
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

    def _most(self) -> int:
        """Tokens of the next chunk at most."""
        most = self._batch.capacity
        return most if self.watch is None else self.watch.chunk(len(self.tokens), most)
