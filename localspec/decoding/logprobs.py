"""Log-probabilities of the tokens of a step, by the target."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from localspec.decoding.distribution import Distribution
from localspec.decoding.sampling import Row, top_ids


class TokenLogprob(NamedTuple):
    """One committed token.

    Attributes:
        logprob: natural logarithm of its probability.
        top: the most probable tokens with theirs, best first.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


def raw_logprobs(
    rows: Iterable[Row], tokens: Sequence[int], alternatives: int
) -> tuple[TokenLogprob, ...]:
    """Of the softmax of the target's logits as they are: temperature 1, before bias, grammar,
    penalties and truncation.

    Args:
        rows: logits at each token, float32 [vocabulary]; there may be more.
        alternatives: how many of the most probable tokens to give with each.
    """
    found = []
    for token, row in zip(tokens, rows, strict=False):
        best = float(row.max())
        normaliser = best + float(np.log(np.exp(row - best).sum(dtype=np.float64)))
        top = top_ids(row, alternatives).tolist() if alternatives else ()
        top_logprobs = tuple((one, float(row[one]) - normaliser) for one in top)
        found.append(TokenLogprob(token, float(row[token]) - normaliser, top_logprobs))
    return tuple(found)


def sampled_logprobs(
    targets: Sequence[Distribution], tokens: Sequence[int], alternatives: int
) -> tuple[TokenLogprob, ...]:
    """The same of the distributions that the tokens were drawn from; tokens that could not come are
    left out."""
    found = []
    for token, target in zip(tokens, targets, strict=False):
        probability = target.prob(token)
        logprob = math.log(probability) if probability else -math.inf  # a lossy rule's
        best = (-target.probs).argsort(kind="stable")[:alternatives].tolist()
        top = ((target.ids.item(i), target.probs.item(i)) for i in best)
        found.append(TokenLogprob(token, logprob, tuple((t, math.log(p)) for t, p in top if p)))
    return tuple(found)
