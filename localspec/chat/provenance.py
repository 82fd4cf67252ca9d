"""The source of each part of an answer's text, and what was rejected."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from localspec.decoding.interfaces import Step

Span = tuple[int, str]
"""Characters, and their source: a drafter's name, or "target"."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """A rejected proposal, after `at` characters of the answer."""

    at: int
    text: str
    source: str


class Provenance:
    """Records the sources of one answer's text. A character belongs to the token that completes it.
    `begins`: the start of the answer that was part of the prompt; `spans`: runs that cover the text
    so far; `rejected`: rejected proposals in order."""

    def __init__(self, token_bytes: Callable[[int], bytes], begins: str = "") -> None:
        self.spans: list[Span] = []
        self.rejected: list[Rejected] = []
        self._bytes = token_bytes
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._length = 0
        self._append(begins, "target")

    def add(self, step: Step) -> None:
        accepted = len(step.path)
        for number, (token, source) in enumerate(zip(step.tokens, step.sources, strict=True)):
            if number == accepted:
                self._reject(step)
            self._append(self._decode(self._bytes(token)), source)

    def _append(self, text: str, source: str) -> None:
        if not text:
            return
        self._length += len(text)
        if self.spans and self.spans[-1][1] == source:
            self.spans[-1] = (self.spans[-1][0] + len(text), source)
        else:
            self.spans.append((len(text), source))

    def _reject(self, step: Step) -> None:
        """Record the main branch below the last accepted token as rejected."""
        # Imported here, because it imports numpy, which would delay the chat's first paint.
        from localspec.decoding.tree import ROOT

        tree = step.tree
        node, nodes = (step.path[-1] if step.path else ROOT), list[int]()
        while children := [n for n in tree.children(node) if n < tree.proposed]:
            node = children[0]
            nodes.append(node)
        if nodes:
            text = b"".join(self._bytes(tree.tokens[n]) for n in nodes).decode("utf-8", "replace")
            self.rejected.append(Rejected(self._length, text, tree.sources[nodes[0]]))


def fit_spans(spans: Sequence[Span], length: int) -> list[Span]:
    """Cut spans to `length` characters, or extend them with the target as source."""
    from localspec.decoding.interfaces import TARGET

    found: list[Span] = []
    for count, source in spans:
        if length <= 0:
            break
        found.append((min(count, length), source))
        length -= count
    if length > 0:
        found.append((length, TARGET))
    return found
