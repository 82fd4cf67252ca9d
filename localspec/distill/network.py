"""What trains a draft: a llama model in PyTorch (Touvron et al. 2023), and its distance from the
target's distribution p (DistillSpec, Zhou et al. 2023).

The model is a function of its weights by GGUF names. RoPE of GGUF's type NORM rotates neighbouring
pairs. Weights are float32; activations are [batch, tokens, width]. Of p only the likeliest tokens
are known; all others together count as one more class.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from operator import add
from typing import Any, NamedTuple

from localspec.bench.scaled_gguf import Shape
from localspec.errors import UsageError, extra_package
from localspec.signals import delayed_signals

DEVICES = ("auto", "cpu", "cuda", "mps")
Tensor = Any
"""A torch.Tensor; torch is not imported for its types."""
MIN_REST = 1e-6
"""Smallest q of all other tokens, so that its logarithm is finite."""
ABSENT = -30.0
"""The log p of a token that a draft does not have."""
CHUNK = 1 << 24
"""Logits per chunk: 64 MiB, and as much for their gradients."""


def torch_package() -> Any:
    """The package torch, or a UsageError."""
    if known := sys.modules.get("torch"):
        return known
    with delayed_signals():
        return extra_package("torch", "Drafts are trained with", "train")


class _Torch:
    """PyTorch, imported with its first use."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch_package(), name)


torch: Any = _Torch()


def device(wanted: str) -> Any:
    """The device for training, one of DEVICES; "auto" picks the fastest. A UsageError if PyTorch
    does not find it."""
    there = {
        "cpu": True,
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
    }
    if wanted == "auto":
        wanted = next(name for name in ("cuda", "mps", "cpu") if there[name])
    if not there[wanted]:
        raise UsageError(
            f"PyTorch finds no device '{wanted}' here. Use --device cpu, or install a PyTorch "
            "that was built for it."
        )
    return torch.device(wanted)


def states(weights: Mapping[str, Tensor], shape: Shape, tokens: Tensor) -> Tensor:
    """The input of the output matrix, after the norm: [batch, tokens, width]. `tokens`: int [batch,
    tokens], padded at the end."""
    return layer_inputs(weights, shape, tokens)[1]


def layer_inputs(
    weights: Mapping[str, Tensor], shape: Shape, tokens: Tensor
) -> tuple[list[Tensor], Tensor]:
    """The input of each layer, and `states`."""
    x = torch.nn.functional.embedding(tokens, weights["token_embd.weight"])
    angles = rotations(shape, tokens.shape[1], x.device)
    inputs = []
    for layer in range(shape.layers):
        inputs.append(x)
        x = _block(weights, shape, x, angles, f"blk.{layer}")
    return inputs, norm(x, weights["output_norm.weight"], shape.epsilon)


def output_matrix(weights: Mapping[str, Tensor], shape: Shape) -> Tensor:
    """[vocabulary, width]: logits are states times its transpose."""
    return weights["token_embd.weight" if shape.tied else "output.weight"]


def _block(
    weights: Mapping[str, Tensor], shape: Shape, x: Tensor, angles: tuple[Tensor, Tensor], at: str
) -> Tensor:
    """A layer: causal attention with grouped queries, and the feed-forward part."""
    functional = torch.nn.functional
    normed = norm(x, weights[f"{at}.attn_norm.weight"], shape.epsilon)
    queries, keys, values = project(weights, shape, normed, angles, at)
    mixed = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
    mixed = mixed.transpose(1, 2).flatten(2)
    x = x + functional.linear(mixed, weights[f"{at}.attn_output.weight"])
    return x + feed_forward(weights, norm(x, weights[f"{at}.ffn_norm.weight"], shape.epsilon), at)


def project(
    weights: Mapping[str, Tensor], shape: Shape, x: Tensor, angles: tuple[Tensor, Tensor], at: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values, [batch, heads, tokens, head width], repeated for every head."""
    batch, tokens, _ = x.shape

    def heads(name: str, count: int) -> Tensor:
        found = torch.nn.functional.linear(x, weights[f"{at}.{name}.weight"])
        return found.view(batch, tokens, count, shape.head_width).transpose(1, 2)

    queries = _rotate(heads("attn_q", shape.heads), angles)
    keys = _rotate(heads("attn_k", shape.kv_heads), angles)
    values = heads("attn_v", shape.kv_heads)
    if shape.kv_heads != shape.heads:
        keys, values = (
            tensor.repeat_interleave(shape.heads // shape.kv_heads, 1) for tensor in (keys, values)
        )
    return queries, keys, values


def feed_forward(weights: Mapping[str, Tensor], x: Tensor, at: str) -> Tensor:
    functional = torch.nn.functional
    gate = functional.silu(functional.linear(x, weights[f"{at}.ffn_gate.weight"]))
    up = functional.linear(x, weights[f"{at}.ffn_up.weight"])
    return functional.linear(gate * up, weights[f"{at}.ffn_down.weight"])


def norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    return torch.nn.functional.rms_norm(x, weight.shape, weight, epsilon)


def rotations(shape: Shape, tokens: int, device: Any) -> tuple[Tensor, Tensor]:
    """Cosines and sines of RoPE's angles, [tokens, rotated ÷ 2] each."""
    pairs = torch.arange(0, shape.rotated, 2, dtype=torch.float32, device=device)
    angles = torch.outer(
        torch.arange(tokens, dtype=torch.float32, device=device),
        shape.base ** (-pairs / shape.rotated),
    )
    return angles.cos(), angles.sin()


def _rotate(x: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate queries or keys [batch, heads, tokens, head width] by their positions."""
    cosines, sines = angles
    count = 2 * cosines.shape[1]
    even, odd = x[..., 0:count:2], x[..., 1:count:2]
    turned = torch.stack((even * cosines - odd * sines, even * sines + odd * cosines), -1)
    turned = turned.flatten(-2)
    return turned if count == x.shape[-1] else torch.cat((turned, x[..., count:]), -1)


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
