"""What a model makes of a given text, token by token."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from localspec.decoding.interfaces import Limits, PassRequest, Target
from localspec.decoding.logprobs import TokenLogprob, told_along
from localspec.decoding.tree import TokenTree
from localspec.errors import Cancelled

_NOBODY = ""
_AT_ONCE = 32
"""Tokens of a pass: each gives a row of the whole vocabulary."""


def first_wrong(
    target: Target, limits: Limits, prompt: Sequence[int], answer: Sequence[int]
) -> int | None:
    """The first token of an answer that is not the target's arg-max there; None where all are. With
    batch-invariant passes that proves the answer to be plain greedy decoding's.

    Args:
        target: holds the text as far as it was read afterwards.
        prompt, answer: token ids; of the prompt at least one.
    """
    known, most = list(prompt), 1 + min(_AT_ONCE, limits.max_draft)
    target.rollback(known[:-1])
    for start in range(0, len(answer), most):
        following = list(answer[start : start + most])
        tree = TokenTree.chain(following[:-1], _NOBODY)
        rows = target.forward(PassRequest(known, tree)).rows
        best = rows[: len(following)].argmax(axis=1)
        for at, token in enumerate(following):
            if best[at] != token:
                return start + at
        target.commit(tree, range(len(tree)))
        known += following
    return None


def likelihood(
    target: Target,
    limits: Limits,
    tokens: Sequence[int],
    alternatives: int,
    *,
    stopped: Callable[[], bool] = lambda: False,
) -> list[TokenLogprob]:
    """Log-probabilities of the tokens of a text but the first, verified as if it were a draft.

    Args:
        target: holds all but the last token afterwards.
        alternatives: how many of the most probable tokens to give with each.
        stopped: asked between two passes.

    Raises:
        Cancelled: `stopped` said so.
    """
    most = 1 + min(_AT_ONCE, limits.max_draft)
    told: list[TokenLogprob] = []
    target.rollback(tokens[:0])
    for known in range(1, len(tokens), most):
        if stopped():
            raise Cancelled("The text is no longer needed.")
        following = list(tokens[known : known + most])
        # What comes last is told by the row before it, and read with what follows.
        tree = TokenTree.chain(following[:-1], _NOBODY)
        rows = target.forward(PassRequest(list(tokens[:known]), tree)).rows
        told += told_along(rows, range(len(tree)), following, alternatives)
        target.commit(tree, range(len(tree)))
    return told
