"""Acceptance rules that can change the output, used when named alone; whatever reports them says
"lossy"."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import replace

import numpy as np

from localspec.decoding.acceptance import Verdict, Verification, walk
from localspec.decoding.distribution import Distribution
from localspec.decoding.random_source import RandomSource
from localspec.decoding.sampling import Sampler
from localspec.errors import UsageError


class LossyRule(ABC):
    """Takes at each node the first child that is good enough."""

    name: str
    lossless = False
    trees = True
    coupled = False

    def accept(self, target: Verification, random: RandomSource) -> Verdict:
        tokens = target.tree.tokens

        def accepts(node: int, child: int) -> bool:
            return self.good_enough(judged(target, node), tokens[child])

        path, tested, node = walk(target.tree, accepts)
        return Verdict(path, random.draw(target.p(node), target.position(node)), tested)

    @abstractmethod
    def good_enough(self, p: Distribution, token: int) -> bool:
        pass


class TypicalAcceptance(LossyRule):
    """p(x) > min(epsilon, delta · exp(−H(p))): Medusa, Cai et al. 2024, section 2.3.1."""

    name = "typical"

    def __init__(self, epsilon: float = 0.09, delta: float = 0.3) -> None:
        self.epsilon = epsilon
        self.delta = delta

    def good_enough(self, p: Distribution, token: int) -> bool:
        probs = p.probs[p.probs > 0]
        entropy = -float((probs * np.log(probs)).sum())
        return p.prob(token) > min(self.epsilon, self.delta * math.exp(-entropy))


class TopKMembership(LossyRule):
    """The token is among the target's k most probable."""

    name = "top-k"

    def __init__(self, k: int = 3) -> None:
        self.k = k

    def good_enough(self, p: Distribution, token: int) -> bool:
        mine = p.prob(token)
        return mine > 0.0 and int((p.probs > mine).sum()) < self.k


class TopPMembership(LossyRule):
    """Those more probable than the token hold less than `mass`."""

    name = "top-p"

    def __init__(self, mass: float = 0.5) -> None:
        self.mass = mass

    def good_enough(self, p: Distribution, token: int) -> bool:
        mine = p.prob(token)
        return mine > 0.0 and float(p.probs[p.probs > mine].sum()) < self.mass


class ConfidenceThreshold(LossyRule):
    name = "threshold"

    def __init__(self, probability: float = 0.3) -> None:
        self.probability = probability

    def good_enough(self, p: Distribution, token: int) -> bool:
        return p.prob(token) >= self.probability


def judged(target: Verification, node: int) -> Distribution:
    """p at `node`; at temperature 1 where the text is greedy, as all mass would be on one token."""
    params = target.session.sampler.params
    if params.temperature > 0.0:
        return target.p(node)
    sampler = Sampler(replace(params, temperature=1.0), target.rows.shape[1])
    recent = target.session.recent(target.tree.path_tokens(node))
    return sampler.distribution(target.rows[node + 1], recent, target.constraint(node))


def lossy_rule(name: str, value: float | None) -> LossyRule:
    """The rule of that name; `value` replaces its threshold (epsilon, k, mass, probability).

    Raises:
        UsageError: a threshold out of its range.
    """
    if name == "top-k":
        if value is not None and not (value >= 1 and value % 1 == 0):
            raise UsageError(f"top-k membership needs a whole number of 1 or more, not {value:g}.")
        return TopKMembership() if value is None else TopKMembership(int(value))
    if value is not None and not 0.0 < value <= 1.0:
        raise UsageError(f"The threshold of rule '{name}' lies in (0, 1], and {value:g} does not.")
    if name == "typical":
        return TypicalAcceptance() if value is None else TypicalAcceptance(value)
    if name == "top-p":
        return TopPMembership() if value is None else TopPMembership(value)
    return ConfidenceThreshold() if value is None else ConfidenceThreshold(value)
