"""How far rounding moves rows: passes over several tokens against single-token ones.

In llama.cpp other shapes run through other kernels; with localspec's nothing may move. That is
measured on this model with right tokens alone, of which nothing is ever dropped from the cache: a
build that keeps what was rejected shall not be measured by its own fault.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median

from localspec.decoding.interfaces import PassRequest
from localspec.decoding.tree import ROOT, TokenTree
from localspec.verify.subject import PlainAnswer, Subject

_SOURCE = "verify"


@dataclass(slots=True)
class Noise:
    """What was measured, in logits; see `localspec.verify.rows.Best.moved`.

    Attributes:
        moved: of every row compared.
    """

    moved: list[float] = field(default_factory=list)

    @property
    def most(self) -> float:
        """How far a row was moved at most."""
        return max(self.moved, default=0.0)

    @property
    def usual(self) -> float:
        """The median."""
        return median(self.moved) if self.moved else 0.0


def measure(subject: Subject, answer: PlainAnswer, size: int) -> list[float]:
    """Read a plain answer again in passes over `size` tokens, and compare every row.

    Args:
        size: at least 2.
    """
    subject.engine.clear()
    tokens, best, found = answer.tokens, answer.best, list[float]()
    known = [*answer.prompt]
    start = 0  # the first token that is not known yet
    while len(tokens) - start >= 2:
        known.append(tokens[start])
        chain = list(tokens[start + 1 : start + size])
        tree = TokenTree.chain(chain, _SOURCE)
        last = start + size + size > len(tokens)
        if last and subject.branches:
            # As in a tree: beside a branch that is wrong. The cache is emptied behind it.
            tree = TokenTree()
            wrong = int(best[start + 1].ids[1])
            tree.add(wrong, ROOT, _SOURCE)
            node = ROOT
            for token in chain:
                node = tree.add(token, node, _SOURCE)
        rows = subject.target.forward(PassRequest(known, tree)).rows
        rows = rows[[0, *range(len(rows) - len(chain), len(rows))]]
        for row, plain in zip(rows, best[start + 1 :], strict=False):
            found.append(plain.moved(row))
        if last:
            break
        subject.target.commit(tree, range(len(chain)))
        known += chain
        start += size
    subject.engine.clear()
    return found
