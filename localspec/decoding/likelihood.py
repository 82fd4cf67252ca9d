"""What a model makes of a given text, token by token."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from localspec.decoding.interfaces import Limits, PassRequest, Target
from localspec.decoding.logprobs import TokenLogprob, raw_logprobs
from localspec.decoding.sampling import Rows
from localspec.decoding.tree import TokenTree
from localspec.errors import Cancelled

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
    at = 0
    for tokens, rows in _verified(target, limits, [*prompt, *answer], len(prompt)):
        for token, best in zip(tokens, rows.argmax(axis=1), strict=False):
            if token != best:
                return at
            at += 1
    return None


def likelihood(
    target: Target,
    limits: Limits,
    tokens: Sequence[int],
    alternatives: int,
    *,
    stopped: Callable[[], bool] = lambda: False,
) -> list[TokenLogprob]:
    """Log-probabilities of the tokens of a text but the first.

    Args:
        target: holds all but the last token afterwards.
        alternatives: how many of the most probable tokens to give with each.
        stopped: asked between two passes.

    Raises:
        Cancelled: `stopped` said so.
    """
    told: list[TokenLogprob] = []
    for following, rows in _verified(target, limits, tokens, 1, stopped):
        told += raw_logprobs(rows, following, alternatives)
    return told


def _verified(
    target: Target,
    limits: Limits,
    tokens: Sequence[int],
    known: int,
    stopped: Callable[[], bool] = lambda: False,
) -> Iterator[tuple[Sequence[int], Rows]]:
    """Tokens behind the `known` first, verified as if they were drafts, and the row before each;
    valid until the next ones."""
    most = 1 + min(_AT_ONCE, limits.max_draft)
    target.rollback(tokens[: known - 1])
    for start in range(known, len(tokens), most):
        if stopped():
            raise Cancelled("The text is no longer needed.")
        following = tokens[start : start + most]
        # The last one has its row before it, and is read with what follows.
        tree = TokenTree.chain(following[:-1], "")
        yield following, target.forward(PassRequest(list(tokens[:start]), tree)).rows
        target.commit(tree, range(len(tree)))
