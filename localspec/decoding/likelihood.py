"""Scoring a given text with the target, token by token."""

from collections.abc import Callable, Iterator, Sequence

from localspec.decoding.interfaces import Limits, PassRequest, Target
from localspec.decoding.logprobs import TokenLogprob, raw_logprobs
from localspec.decoding.sampling import Rows
from localspec.decoding.tree import TokenTree
from localspec.errors import Cancelled

_PASS_TOKENS = 32
"""Limited, because each token gives a row of the whole vocabulary."""


def first_wrong(
    target: Target, limits: Limits, prompt: Sequence[int], answer: Sequence[int]
) -> int | None:
    """Index of the first token of an answer that is not the target's arg-max; None if all are. With
    batch-invariant passes this proves that plain greedy decoding gives the same answer.

    Args:
        target: afterwards holds the text as far as it was read.
        prompt, answer: token ids; the prompt has at least one.
    """
    index = 0
    for tokens, rows in _verified(target, limits, [*prompt, *answer], len(prompt)):
        for token, best in zip(tokens, rows.argmax(axis=1), strict=False):
            if token != best:
                return index
            index += 1
    return None


def likelihood(
    target: Target,
    limits: Limits,
    tokens: Sequence[int],
    alternatives: int,
    *,
    stopped: Callable[[], bool] = lambda: False,
) -> list[TokenLogprob]:
    """Log-probabilities of all tokens of a text but the first.

    Args:
        target: afterwards holds all but the last token.
        alternatives: number of most probable tokens to return with each.
        stopped: called between passes; True cancels.

    Raises:
        Cancelled: `stopped` returned True.
    """
    logprobs: list[TokenLogprob] = []
    for following, rows in _verified(target, limits, tokens, 1, stopped):
        logprobs += raw_logprobs(rows, following, alternatives)
    return logprobs


def _verified(
    target: Target,
    limits: Limits,
    tokens: Sequence[int],
    known: int,
    stopped: Callable[[], bool] = lambda: False,
) -> Iterator[tuple[Sequence[int], Rows]]:
    """Yield the tokens after the first `known`, verified like drafts, with the row before each,
    valid until the next iteration."""
    most = 1 + min(_PASS_TOKENS, limits.max_draft)
    target.rollback(tokens[: known - 1])
    for start in range(known, len(tokens), most):
        if stopped():
            raise Cancelled("The text is no longer needed.")
        following = tokens[start : start + most]
        # The last one needs no row after it; it is read with the next part.
        tree = TokenTree.chain(following[:-1], "")
        rows = target.forward(PassRequest(list(tokens[:start]), tree)).rows
        target.commit(tree, range(len(tree)))  # before the caller, who may read no further
        yield following, rows
