"""Log-probabilities of the tokens of a step, by the target."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from localspec.decoding.distribution import Distribution
from localspec.decoding.sampling import Rows, top_ids


class TokenLogprob(NamedTuple):
    """One committed token.

    Attributes:
        logprob: natural logarithm of its probability.
        top: the most probable tokens with theirs, best first.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


def told_along(
    rows: Rows, path: Sequence[int], tokens: Sequence[int], alternatives: int
) -> tuple[TokenLogprob, ...]:
    """Of the softmax of the target's logits as they are: temperature 1, before bias, grammar,
    penalties and truncation.

    Args:
        rows: of the pass, float32 [1 + nodes, vocabulary].
        path: the accepted nodes, whose tokens `tokens` begins with.
        alternatives: how many of the most probable tokens to give with each.
    """
    found = []
    for token, row_number in zip(tokens, [0, *(node + 1 for node in path)], strict=False):
        row = rows[row_number]
        best = float(row.max())
        normaliser = best + float(np.log(np.exp(row - best).sum(dtype=np.float64)))
        top = top_ids(row, alternatives) if alternatives else ()
        found.append(
            TokenLogprob(
                token,
                float(row[token]) - normaliser,
                tuple((int(one), float(row[one]) - normaliser) for one in top),
            )
        )
    return tuple(found)


def told_as_sampled(
    targets: Sequence[Distribution], tokens: Sequence[int], alternatives: int
) -> tuple[TokenLogprob, ...]:
    """The same of what the tokens were drawn from; tokens that could not come are left out.

    Args:
        targets: the target's distribution at each token.
    """
    found = []
    for target, token in zip(targets, tokens, strict=False):
        probability = target.prob(token)
        best = (-target.probs).argsort(kind="stable")[:alternatives]
        top = ((int(target.ids[i]), float(target.probs[i])) for i in best)
        found.append(
            TokenLogprob(
                token,
                math.log(probability) if probability else -math.inf,  # a lossy rule's
                tuple((one, math.log(p)) for one, p in top if p > 0.0),
            )
        )
    return tuple(found)
