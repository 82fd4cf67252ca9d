"""Accept probability of drafted tokens, learned online."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import exp, log
from operator import mul

LOWEST, HIGHEST = 0.005, 0.995
_LOW = log(LOWEST / (1.0 - LOWEST))


def logit(p: float) -> float:
    """log(p / (1 − p)), with p clamped away from 0 and 1."""
    p = 0.001 if p < 0.001 else 0.999 if p > 0.999 else p
    return log(p / (1.0 - p))


@dataclass(eq=False)
class AcceptanceEstimator:
    """The accept probability: a logistic function of features, fitted by the extended Kalman filter
    with forgetting, plus a fast bias for the current conversation.

    Attributes:
        weights: initially the priors; the first feature is the constant 1.
        variance: initially SPREAD² for each weight.
    """

    SPREAD = 0.5
    KEEP = 0.9995  # forgetting per observation
    LARGEST = 4.0
    """Bound of each variance, as forgetting would inflate that of an unobserved weight."""
    EXPECTED = 0.02  # smaller errors are not worth an update
    BIAS_RATE, BIAS_KEEP, BIAS_CLIP = 0.12, 0.99, 2.0

    weights: Sequence[float]
    variance: list[list[float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        n, own = len(self.weights), self.SPREAD * self.SPREAD
        self.variance = self.variance or [[own * (i == j) for j in range(n)] for i in range(n)]
        if [len(row) for row in self.variance] != [n] * n:
            raise ValueError("wrong number of features")
        self.bias = 0.0

    def predict(self, features: Sequence[float]) -> float:
        """The accept probability, between LOWEST and HIGHEST."""
        z = self.bias + sum(map(mul, self.weights, features))
        if z > 5.3:
            return HIGHEST
        return 1.0 / (1.0 + exp(-z)) if z > _LOW else LOWEST

    def learn(self, features: Sequence[float], accepted: bool) -> None:
        p = self.predict(features)
        error = (1.0 if accepted else 0.0) - p
        if -self.EXPECTED < error < self.EXPECTED:
            return
        # Hot path: runs for every tested token, so built-ins replace explicit loops.
        scaled = [sum(map(mul, row, features)) for row in self.variance]
        steepness = p * (1.0 - p)
        gain = 1.0 / (1.0 + steepness * sum(map(mul, scaled, features)))
        step, grow, largest = gain * error, 1.0 / self.KEEP, self.LARGEST
        shrink = gain * steepness * grow
        self.weights = [w + step * s for w, s in zip(self.weights, scaled)]  # noqa: B905
        variance, bounded = [], True
        # The matrix has to stay symmetric to the last bit: forgetting doubles any asymmetry every
        # 1,400 observations, and variances eventually become negative.
        for i, row in enumerate(self.variance):
            own = scaled[i]
            row = [v * grow - shrink * (own * s) for v, s in zip(row, scaled)]  # noqa: B905
            if row[i] > largest:
                bounded = False
            variance.append(row)
        self.variance = variance
        if not bounded:
            # Scale rows and columns alike, so that it stays a covariance.
            fit = [math.sqrt(min(1.0, self.LARGEST / row[i])) for i, row in enumerate(variance)]
            self.variance = [
                [v * (one * other) for v, other in zip(row, fit, strict=True)]
                for row, one in zip(variance, fit, strict=True)
            ]
        bias = self.bias * self.BIAS_KEEP + self.BIAS_RATE * error
        self.bias = max(-self.BIAS_CLIP, min(self.BIAS_CLIP, bias))

    def begin(self) -> None:
        self.bias = 0.0
