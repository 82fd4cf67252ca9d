"""How far rounding moves rows: passes over several tokens against single-token ones.

Right tokens alone: a build that keeps rejected tokens must not be excused by its own fault.
"""

from __future__ import annotations

from localspec.decoding.interfaces import PassRequest
from localspec.decoding.tree import ROOT, TokenTree
from localspec.verify.subject import PlainAnswer, Subject

_SOURCE = "verify"


def measure(subject: Subject, answer: PlainAnswer, size: int) -> list[float]:
    """Read a plain answer again in passes over `size` ≥ 2 tokens.

    Returns how far each row was moved, in logits; see `localspec.verify.best_tokens.Best.moved`.
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
            # As in a tree: beside a branch that is wrong. The cache is emptied after it.
            tree = TokenTree()
            tree.add(int(best[start + 1].ids[1]), ROOT, _SOURCE)
            node = ROOT
            for token in chain:
                node = tree.add(token, node, _SOURCE)
        rows = subject.target.forward(PassRequest(known, tree)).rows
        rows = rows[[0, *range(len(rows) - len(chain), len(rows))]]
        found += [plain.moved(row) for row, plain in zip(rows, best[start + 1 :], strict=False)]
        if last:
            break
        subject.target.commit(tree, range(len(chain)))
        known += chain
        start += size
    subject.engine.clear()
    return found
