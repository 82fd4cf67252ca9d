"""The target's log-probabilities of the tokens of a step."""

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
        top: the most probable tokens with their log-probabilities, best first.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


def raw_logprobs(
    rows: Iterable[Row], tokens: Sequence[int], alternatives: int
) -> tuple[TokenLogprob, ...]:
    """Log-probabilities from the softmax of the target's raw logits: temperature 1, before bias,
    grammar, penalties and truncation.

    Args:
        rows: logits at each token, float32 [vocabulary]; surplus ones are ignored.
        alternatives: number of most probable tokens to return with each.
    """
    found = []
    for token, row in zip(tokens, rows, strict=False):
        best = float(row.max())
        normaliser = best + float(np.log(np.exp(row - best).sum(dtype=np.float64)))
        top = top_ids(row, alternatives).tolist() if alternatives else ()
        top_logprobs = tuple((other, float(row[other]) - normaliser) for other in top)
        found.append(TokenLogprob(token, float(row[token]) - normaliser, top_logprobs))
    return tuple(found)


def sampled_logprobs(
    targets: Sequence[Distribution], tokens: Sequence[int], alternatives: int
) -> tuple[TokenLogprob, ...]:
    """Log-probabilities under the distributions that the tokens were drawn from; the alternatives
    leave out impossible tokens."""
    found = []
    for token, target in zip(tokens, targets, strict=False):
        probability = target.prob(token)
        logprob = math.log(probability) if probability else -math.inf  # accepted by a lossy rule
        best = (-target.probs).argsort(kind="stable")[:alternatives].tolist()
        top = ((target.ids.item(i), target.probs.item(i)) for i in best)
        found.append(TokenLogprob(token, logprob, tuple((t, math.log(p)) for t, p in top if p)))
    return tuple(found)
