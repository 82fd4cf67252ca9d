"""The loss, and distances from the target's distribution p (DistillSpec, Zhou et al. 2023).

Only the likeliest tokens of p are known; all others together count as one more class.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from operator import add
from typing import Any, NamedTuple

from localspec.distill.pytorch import Tensor, torch

MIN_REST = 1e-6
"""Smallest q of all other tokens, so that its logarithm is finite."""
ABSENT = -30.0
"""The log p of a token that a draft does not have."""
CHUNK = 1 << 24
"""Logits per chunk: 64 MiB, and as much for their gradients."""


@dataclass(frozen=True, slots=True)
class Metrics:
    """Sums over tokens. `loss`: training loss in nats; `agreed`: how often p and q have the same
    likeliest token; `overlap`: Σ min(p, q) (Leviathan et al. 2023, section 3)."""

    tokens: int = 0
    loss: float = 0.0
    agreed: int = 0
    overlap: float = 0.0

    def __add__(self, other: Metrics) -> Metrics:
        return Metrics(*map(add, astuple(self), astuple(other)))

    @property
    def mean_loss(self) -> float:
        return self.loss / max(1, self.tokens)

    @property
    def agreement(self) -> float:
        return self.agreed / max(1, self.tokens)

    @property
    def acceptance(self) -> float:
        return self.overlap / max(1, self.tokens)


class Labels(NamedTuple):
    """At n positions: next token [n], likeliest ids and log p [n, k], p of all others [n]."""

    following: Tensor
    ids: Tensor
    log_p: Tensor
    rest: Tensor

    def at(self, places: Any) -> Labels:
        return Labels(*(tensor[places] for tensor in self))


@dataclass(frozen=True, slots=True)
class Output:
    """States [n, width], the output matrix [vocabulary, width], and the labels."""

    states: Tensor
    matrix: Tensor
    labels: Labels


def divergence(logits: Tensor, labels: Labels, hard: float) -> tuple[Tensor, Metrics]:
    """KL(p ‖ q) plus `hard` × cross entropy of the next token, summed over n positions; `logits`:
    the draft's, [n, vocabulary]."""
    total = torch.logsumexp(logits, -1, keepdim=True)
    log_q = logits.gather(1, labels.ids) - total
    p = labels.log_p.exp()
    other = (1.0 - log_q.exp().sum(-1)).clamp_min(MIN_REST)
    rest = labels.rest.clamp_min(0.0)
    entropy = (p * labels.log_p).sum(-1) + torch.special.xlogy(rest, rest)
    kl = entropy - (p * log_q).sum(-1) - rest * other.log()
    missed = total[:, 0] - logits.gather(1, labels.following[:, None])[:, 0]
    loss = (kl + hard * missed).sum()
    with torch.no_grad():
        measured = Metrics(
            len(logits),
            float(loss),
            int((logits.argmax(-1) == labels.ids[:, 0]).sum()),
            float(torch.minimum(p, log_q.exp()).sum()),
        )
    return loss, measured


def chunked_loss(output: Output, hard: float, *, backward: bool) -> tuple[Tensor | None, Metrics]:
    """`divergence` of states, in chunks: all logits at once would take gigabytes. With `backward`,
    adds to the matrix's gradient. Returns the gradient of the mean loss with respect to the states
    (None without `backward`), and metrics."""
    count, size = len(output.states), max(1, CHUNK // len(output.matrix))
    measured, gradients = Metrics(), []
    for start in range(0, max(1, count), size):  # without positions the gradients are zeros
        here = slice(start, start + size)
        piece = output.states[here].detach().requires_grad_(backward)
        with torch.set_grad_enabled(backward):
            loss, found = divergence(piece @ output.matrix.T, output.labels.at(here), hard)
            if backward:
                (loss / max(1, count)).backward()
                gradients.append(piece.grad)
        measured += found
    return (torch.cat(gradients) if backward else None), measured
