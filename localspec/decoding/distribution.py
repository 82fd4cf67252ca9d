"""Sparse probability distributions over token ids."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int32]
Probabilities = npt.NDArray[np.float64]


class Distribution:
    """Probabilities of the tokens left by a truncation; all others have probability 0.

    Attributes:
        ids: int32 [n], ascending and unique.
        probs: float64 [n], at least 0, summing to 1.
    """

    __slots__ = ("ids", "probs")

    def __init__(self, ids: Ids, probs: Probabilities) -> None:
        self.ids = ids
        self.probs = probs

    @classmethod
    def certain(cls, token: int) -> Distribution:
        return cls(np.array([token], np.int32), np.ones(1))

    @classmethod
    def normalised(cls, ids: Ids, weights: Probabilities) -> Distribution:
        return cls(ids, weights / np.add.reduce(weights))

    def prob(self, token: int) -> float:
        i = int(self.ids.searchsorted(token))
        return float(self.probs[i]) if i < len(self.ids) and self.ids[i] == token else 0.0

    def at(self, ids: Ids) -> Probabilities:
        indices = self.ids.searchsorted(ids)
        indices[indices == len(self.ids)] = 0
        found: Probabilities = np.where(self.ids[indices] == ids, self.probs[indices], 0.0)
        return found

    def without(self, token: int) -> Distribution | None:
        """The distribution given that `token` is not drawn; None if no mass is left."""
        keep = self.ids != token
        weights = self.probs[keep]
        return Distribution.normalised(self.ids[keep], weights) if weights.sum() > 0.0 else None

    def excess(self, other: Distribution, scale: float = 1.0) -> tuple[Probabilities, float]:
        """(scale · self − other)+ over `self.ids`, and its sum."""
        weights = self.probs * scale
        weights -= other.at(self.ids)
        np.maximum(weights, 0.0, out=weights)
        return weights, float(np.add.reduce(weights))

    def residual(self, other: Distribution) -> Distribution:
        """norm((self − other)+), Leviathan et al. 2023, section 2.3."""
        return self.left_over(*self.excess(other))

    def left_over(self, weights: Probabilities, total: float) -> Distribution:
        """The result of `excess`, normalised; `self` if rounding leaves no mass, because then the
        rejection had probability 0."""
        return Distribution(self.ids, weights / total) if total > 0.0 else self
