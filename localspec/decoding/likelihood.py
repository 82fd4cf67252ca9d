"""How likely a model finds a text that is there already, token by token."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from localspec.decoding.interfaces import Limits, PassRequest, Target
from localspec.decoding.logprobs import TokenLogprob, told_along
from localspec.decoding.tree import TokenTree
from localspec.errors import Cancelled

_NOBODY = ""
"""Who proposed the text."""
_AT_ONCE = 32
"""Tokens of a pass: each gives a row of the whole vocabulary."""


def likelihood(
    target: Target,
    limits: Limits,
    tokens: Sequence[int],
    alternatives: int,
    *,
    stopped: Callable[[], bool] = lambda: False,
) -> list[TokenLogprob]:
    """Log-probabilities of the tokens of a text but the first, before which there is nothing.

    The text is verified as if it had been drafted: in passes over as many tokens as the target
    verifies at a time. Where those shall round as single-token passes do (`exact`), so do these.

    Args:
        target: holds all but the last token afterwards.
        limits: of the target.
        tokens: of the text.
        alternatives: how many of the most probable tokens to tell with each.
        stopped: asked between two passes.

    Raises:
        Cancelled: `stopped` said so.
    """
    most = 1 + min(_AT_ONCE, limits.max_draft)
    told: list[TokenLogprob] = []
    target.rollback(tokens[:0])
    for known in range(1, len(tokens), most):
        if stopped():
            raise Cancelled("Nobody waits for the text any more.")
        following = list(tokens[known : known + most])
        # What comes last is told by the row before it, and read with what follows.
        tree = TokenTree.chain(following[:-1], _NOBODY)
        rows = target.forward(PassRequest(list(tokens[:known]), tree)).rows
        told += told_along(rows, range(len(tree)), following, alternatives)
        target.commit(tree, range(len(tree)))
    return told
