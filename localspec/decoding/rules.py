"""Acceptance rules by name, and the lossy ones, which can change the output."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from localspec.decoding.acceptance import (
    AcceptanceRule,
    BlockVerification,
    GreedyMatch,
    SampleMatch,
    SpeculativeSampling,
    Verdict,
    Verification,
    walk,
)
from localspec.decoding.distribution import Distribution
from localspec.decoding.random_source import SeededRandom
from localspec.decoding.sampling import Sampler
from localspec.errors import UsageError

Criterion: TypeAlias = Callable[[Distribution, int, float], bool]
"""Whether a token is accepted, given the target's distribution at its position and a threshold."""
DELTA = 0.3


def typical(p: Distribution, token: int, epsilon: float) -> bool:
    """p(x) > min(epsilon, DELTA · exp(−H(p))): Medusa, Cai et al. 2024, section 2.3.1."""
    probs = p.probs[p.probs > 0]
    entropy = -float((probs * np.log(probs)).sum())
    return p.prob(token) > min(epsilon, DELTA * math.exp(-entropy))


def among_best(p: Distribution, token: int, k: float) -> bool:
    """The token is among the target's k most probable."""
    mine = p.prob(token)
    return mine > 0.0 and int((p.probs > mine).sum()) < k


def in_nucleus(p: Distribution, token: int, mass: float) -> bool:
    """The tokens more probable than this one have less than `mass` in total."""
    mine = p.prob(token)
    return mine > 0.0 and float(p.probs[p.probs > mine].sum()) < mass


def confident(p: Distribution, token: int, probability: float) -> bool:
    """The target gives the token at least this probability."""
    return p.prob(token) >= probability


CRITERIA: Mapping[str, tuple[Criterion, float]] = {
    "typical": (typical, 0.09),
    "top-k": (among_best, 3),
    "top-p": (in_nucleus, 0.5),
    "threshold": (confident, 0.3),
}
"""By rule name, with the default threshold."""


class LossyRule(AcceptanceRule):
    """Accepts at each node the first child that meets the criterion. Used only by name; reports
    call it "lossy".

    Args:
        name: one of CRITERIA.
        threshold: None for the default.

    Raises:
        UsageError: the threshold is out of range.
    """

    lossless = False

    def __init__(self, name: str, threshold: float | None = None) -> None:
        self.name = name
        self.criterion, default = CRITERIA[name]
        self.threshold = value = default if threshold is None else threshold
        if name == "top-k":
            if not (value >= 1 and value % 1 == 0):
                raise UsageError(
                    f"top-k membership needs a whole number of 1 or more, not {value:g}."
                )
        elif not 0.0 < value <= 1.0:
            raise UsageError(f"The threshold of rule '{name}' must be in (0, 1], not {value:g}.")

    def accept(self, target: Verification, random: SeededRandom) -> Verdict:
        tokens = target.tree.tokens

        def accepts(node: int, child: int) -> bool:
            return self.criterion(
                criterion_distribution(target, node), tokens[child], self.threshold
            )

        path, tested, node = walk(target.tree, accepts)
        return Verdict(path, random.draw(target.p(node), target.position(node)), tested)


def criterion_distribution(target: Verification, node: int) -> Distribution:
    """p at `node`; at temperature 1 for greedy text, where all mass would be on one token."""
    params = target.session.sampler.params
    if params.temperature > 0.0:
        return target.p(node)
    sampler = Sampler(replace(params, temperature=1.0), target.rows.shape[1])
    return target.distribution(node, sampler)


RULES: dict[str, type[AcceptanceRule]] = {
    "auto": SampleMatch,
    "token": SpeculativeSampling,
    "block": BlockVerification,
    "match": SampleMatch,
}
LOSSLESS, LOSSY = tuple(RULES), tuple(CRITERIA)


def acceptance_rule(name: str, *, greedy: bool, threshold: float | None = None) -> AcceptanceRule:
    """The rule to verify with.

    Args:
        name: one of LOSSLESS or LOSSY; at temperature 0 the lossless ones are all the greedy match.
        threshold: of a lossy rule; None for its default.

    Raises:
        UsageError: the name is unknown, or the rule has no threshold.
    """
    if name in CRITERIA:
        return LossyRule(name, threshold)
    if name not in RULES:
        raise UsageError(
            f"There is no acceptance rule '{name}'. Choose one of {', '.join(LOSSLESS + LOSSY)}."
        )
    if threshold is not None:
        raise UsageError(f"Rule '{name}' is lossless and has no threshold. Leave it out.")
    return GreedyMatch() if greedy else RULES[name]()
