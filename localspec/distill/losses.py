"""The loss, and distances from the target's distribution p (DistillSpec, Zhou et al. 2023).

Of p the likeliest tokens are known; all others together are one class more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from localspec.distill.pytorch import torch_package

Tensor = Any
LEAST = 1e-6
"""Least q of all other tokens, so that its logarithm stays finite."""
ABSENT = -30.0
"""The log p of a token that a draft does not have."""
PIECE = 1 << 24
"""Logits at once: 64 MiB, and as much for their gradients."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Sums over tokens. `loss`: nats, as trained on; `agreed`: how often p and q have the same
    likeliest token; `overlap`: Σ min(p, q) over these (Leviathan et al. 2023, section 3)."""

    tokens: int = 0
    loss: float = 0.0
    agreed: int = 0
    overlap: float = 0.0

    def __add__(self, other: Measured) -> Measured:
        return Measured(
            self.tokens + other.tokens,
            self.loss + other.loss,
            self.agreed + other.agreed,
            self.overlap + other.overlap,
        )

    @property
    def mean_loss(self) -> float:
        return self.loss / max(1, self.tokens)

    @property
    def agreement(self) -> float:
        return self.agreed / max(1, self.tokens)

    @property
    def acceptance(self) -> float:
        return self.overlap / max(1, self.tokens)


class Wanted(NamedTuple):
    """At n places: the following token [n], likeliest ids and log p [n, k], what is left [n]."""

    following: Tensor
    ids: Tensor
    log_p: Tensor
    rest: Tensor

    def at(self, places: Any) -> Wanted:
        return Wanted(*(each[places] for each in self))


@dataclass(frozen=True, slots=True)
class Output:
    """States [n, width], the matrix [vocabulary, width] that they meet, and what is wanted."""

    states: Tensor
    matrix: Tensor
    wanted: Wanted


def distance(logits: Tensor, wanted: Wanted, hard: float) -> tuple[Tensor, Measured]:
    """KL(p ‖ q) plus `hard` × cross entropy of the token that followed, summed over n places;
    `logits` [n, vocabulary] are the draft's."""
    torch = torch_package()
    total = torch.logsumexp(logits, -1, keepdim=True)
    log_q = logits.gather(1, wanted.ids) - total
    p = wanted.log_p.exp()
    other = (1.0 - log_q.exp().sum(-1)).clamp_min(LEAST)
    rest = wanted.rest.clamp_min(0.0)
    entropy = (p * wanted.log_p).sum(-1) + torch.special.xlogy(rest, rest)
    kl = entropy - (p * log_q).sum(-1) - rest * other.log()
    missed = total[:, 0] - logits.gather(1, wanted.following[:, None])[:, 0]
    loss = (kl + hard * missed).sum()
    with torch.no_grad():
        measured = Measured(
            len(logits),
            float(loss),
            int((logits.argmax(-1) == wanted.ids[:, 0]).sum()),
            float(torch.minimum(p, log_q.exp()).sum()),
        )
    return loss, measured


def in_pieces(output: Output, hard: float, *, backward: bool) -> tuple[Tensor | None, Measured]:
    """`distance` of states, some at a time: all logits would take gigabytes. The matrix's gradient
    is added to where `backward`. Returns the gradient of the mean loss by the states (None without
    `backward`), and measurements."""
    torch = torch_package()
    count, size = len(output.states), max(1, PIECE // len(output.matrix))
    measured, gradients = Measured(), []
    for start in range(0, max(1, count), size):  # without any place the gradients are zeros
        here = slice(start, start + size)
        piece = output.states[here].detach().requires_grad_(backward)
        with torch.set_grad_enabled(backward):
            loss, found = distance(piece @ output.matrix.T, output.wanted.at(here), hard)
            if backward:
                (loss / max(1, count)).backward()
                gradients.append(piece.grad)
        measured += found
    return (torch.cat(gradients) if backward else None), measured
