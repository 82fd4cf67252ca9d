"""Token trees: proposed by drafters, verified in one batched pass."""

from __future__ import annotations

from collections.abc import Iterable

from localspec.decoding.distribution import Distribution

ROOT = -1
"""The parent of a tree's first tokens: the last committed token."""
PADDING = "padding"
"""Source of a token that pads a pass."""


class TokenTree:
    """Proposed continuations of the committed tokens, with shared prefixes.

    A chain is a tree with one branch; plain decoding uses the empty tree. Parents come before
    children. Siblings have the order they were drawn in; acceptance rules must test them in it.

    Attributes:
        tokens: token id of each node.
        parents: parent of each node, ROOT for the first level.
        proposals: q that a node's token was drawn from, given its earlier siblings (without
            replacement); None for a chosen token: q = 1.
        sources: name of the source that proposed each node, or PADDING.
        proposed: number of proposed nodes; those after them are padding.
    """

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.proposals: list[Distribution | None] = []
        self.sources: list[str] = []
        self.depths: list[int] = []
        self.proposed = 0
        self._children: list[list[int]] = [[]]
        self._branches = False

    def __len__(self) -> int:
        return len(self.tokens)

    @classmethod
    def chain(cls, tokens: Iterable[int], source: str) -> TokenTree:
        """One branch of chosen (not drawn) tokens."""
        tree = cls()
        node = ROOT
        for token in tokens:
            node = tree.add(token, node, source)
        return tree

    def add(
        self, token: int, parent: int, source: str, proposal: Distribution | None = None
    ) -> int:
        node = len(self.tokens)
        self.tokens.append(token)
        self.parents.append(parent)
        self.proposals.append(proposal)
        self.sources.append(source)
        self.depths.append(1 if parent == ROOT else self.depths[parent] + 1)
        siblings = self._children[parent + 1]
        self._branches = self._branches or bool(siblings)
        siblings.append(node)
        self._children.append([])
        self.proposed = node + 1
        return node

    def pad(self, token: int, parent: int) -> int:
        """Add a token that fills a slot and is not counted; only padding may follow."""
        proposed = self.proposed
        node = self.add(token, parent, PADDING)
        self.proposed = proposed
        return node

    def children(self, node: int) -> list[int]:
        """In the order they were drawn."""
        return self._children[node + 1]

    def path(self, node: int) -> list[int]:
        """Nodes from the first level down to `node`; empty for ROOT."""
        nodes: list[int] = []
        while node != ROOT:
            nodes.append(node)
            node = self.parents[node]
        nodes.reverse()
        return nodes

    def path_tokens(self, node: int) -> list[int]:
        return [self.tokens[n] for n in self.path(node)]

    def main_leaf(self) -> int:
        """The last node of the main branch (first children), ROOT for an empty tree."""
        node = ROOT
        while self._children[node + 1]:
            node = self._children[node + 1][0]
        return node

    def is_chain(self) -> bool:
        return not self._branches

    def leaf_numbers(self) -> list[list[int]]:
        """For each node, the numbers of the leaves below it (itself if it is one), main branch
        first.

        These are the sequence ids that make llama.cpp's mask show a node exactly its ancestors."""
        below: list[list[int]] = [[] for _ in self.tokens]
        count = 0
        stack = list(reversed(self._children[0]))
        while stack:
            node = stack.pop()
            children = self._children[node + 1]
            if children:
                stack.extend(reversed(children))
                continue
            while node != ROOT:
                below[node].append(count)
                node = self.parents[node]
            count += 1
        return below
