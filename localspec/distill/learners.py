"""What is trained: a draft model, an EAGLE-3 head, or Medusa heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from localspec.bench.scaled_gguf import Shape
from localspec.distill import network
from localspec.distill.losses import Wanted
from localspec.distill.torch_room import torch_package

Tensor = Any
Tensors = Mapping[str, Tensor]
UNROLLED = 4
"""Passes of an EAGLE-3 head over its own states (Li et al. 2025, section 3.2)."""


@dataclass(frozen=True, slots=True)
class TrainingBatch:
    """Some answers: `tokens` int [answers, longest], padded at the end. `places` int [n]: indices
    into flattened `tokens` after which something is wanted; `left` int [n]: how many more of the
    same answer follow."""

    tokens: Tensor
    places: Tensor
    left: Tensor
    wanted: Wanted

    def later(self, count: int) -> tuple[Tensor, Wanted]:
        """Indices of places that `count` more follow, and what is wanted `count` later."""
        torch = torch_package()
        found = torch.nonzero(self.left >= count)[:, 0]
        return found, self.wanted.at(found + count)


@dataclass(frozen=True, slots=True)
class Output:
    """States [n, width], the matrix [vocabulary, width] that they meet, and what is wanted."""

    states: Tensor
    matrix: Tensor
    wanted: Wanted


class Learner(Protocol):
    def outputs(self, weights: Tensors, batch: TrainingBatch) -> list[Output]:
        """What its weights make of a batch."""
        ...


@dataclass(frozen=True, slots=True)
class DraftLearner:
    shape: Shape

    def outputs(self, weights: Tensors, batch: TrainingBatch) -> list[Output]:
        states = network.states(weights, self.shape, batch.tokens)
        matrix = network.output_matrix(weights, self.shape)
        return [Output(states.flatten(0, 1)[batch.places], matrix, batch.wanted)]


@dataclass(frozen=True, slots=True)
class MedusaLearner:
    """Head k predicts from the target's last state the token k + 1 after the target's own (Cai et
    al. 2024, section 2.1). `shape` and `target` are the target's, which stays."""

    shape: Shape
    target: Tensors
    heads: int

    def outputs(self, weights: Tensors, batch: TrainingBatch) -> list[Output]:
        torch = torch_package()
        with torch.no_grad():
            _, last = network.layer_inputs(self.target, self.shape, batch.tokens)
            read = last.flatten(0, 1)[batch.places]
        found = []
        for head in range(self.heads):
            where, wanted = batch.later(head + 1)
            x, at = read[where], f"medusa.{head}.blk.0"
            inner = torch.nn.functional.linear(x, weights[f"{at}.weight"], weights[f"{at}.bias"])
            x = x + torch.nn.functional.silu(inner)
            found.append(Output(x, weights["medusa.output.weight"], wanted))
        return found


@dataclass(frozen=True, slots=True)
class EagleLearner:
    """One layer that reads a token and three of the target's states, or its own (Li et al. 2025).
    `shape`, `target`: the target's, which stays; `layers`: of it, whose inputs are read."""

    shape: Shape
    target: Tensors
    layers: tuple[int, ...]

    def outputs(self, weights: Tensors, batch: TrainingBatch) -> list[Output]:
        torch = torch_package()
        with torch.no_grad():
            inputs, _ = network.layer_inputs(self.target, self.shape, batch.tokens)
            read = torch.cat([inputs[layer] for layer in self.layers], -1)
            # The token behind each place; the last place of a text has none, and is not asked.
            following = torch.roll(batch.tokens, -1, 1)
            words = torch.nn.functional.embedding(following, self.target["token_embd.weight"])
        matrix = weights.get("output.weight")
        if matrix is None:
            matrix = network.output_matrix(self.target, self.shape)
        g = torch.nn.functional.linear(read, weights["fc.weight"])
        found, cached = [], list[tuple[Tensor, Tensor]]()
        for turn in range(UNROLLED):
            y = self._layer(weights, words, g, cached)
            where, wanted = batch.later(1 + turn)
            places = batch.places[where] + turn
            normed = network.norm(y, weights["output_norm.weight"], self.shape.epsilon)
            found.append(Output(normed.flatten(0, 1)[places], matrix, wanted))
            g = torch.roll(y, 1, 1)  # what it made of the place before stands for the target's
        return found

    def _layer(
        self, weights: Tensors, words: Tensor, g: Tensor, cached: list[tuple[Tensor, Tensor]]
    ) -> Tensor:
        torch, epsilon = torch_package(), self.shape.epsilon
        x = torch.cat(
            (
                network.norm(words, weights["blk.0.attn_norm.weight"], epsilon),
                network.norm(g, weights["blk.0.attn_norm_2.weight"], epsilon),
            ),
            -1,
        )
        turns = network.rotations(self.shape, x.shape[1], x.device)
        queries, keys, values = network.projected(weights, self.shape, x, turns, "blk.0")
        cached.append((keys, values))
        mixed = _attended(queries, cached).transpose(1, 2).flatten(2)
        a = g + torch.nn.functional.linear(mixed, weights["blk.0.attn_output.weight"])
        normed = network.norm(a, weights["blk.0.ffn_norm.weight"], epsilon)
        return a + network.feed_forward(weights, normed, "blk.0")


def _attended(queries: Tensor, cached: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """What a token drafted after `turn` others attends to (Li et al. 2025, section 3.2): those
    others, at the `turn` places before it, from their own turns; the rest from turn 0. `cached`:
    keys and values of each turn, all [batch, heads, tokens, head width]."""
    torch, turn = torch_package(), len(cached) - 1
    functional = torch.nn.functional
    if not turn:
        return functional.scaled_dot_product_attention(queries, *cached[0], is_causal=True)
    queries = queries * queries.shape[-1] ** -0.5
    (keys, values), drafted = cached[0], cached[1:]
    # Turn s was at the place turn - s before.
    drafted = [
        tuple(torch.roll(each, turn - s, 2) for each in pair) for s, pair in enumerate(drafted, 1)
    ]
    count = queries.shape[2]
    later = torch.ones(count, count, dtype=torch.bool, device=queries.device).triu(1 - turn)
    scores = (queries @ keys.mT).masked_fill(later, -torch.inf)
    own = torch.stack([(queries * keys).sum(-1) for keys, _ in drafted], -1)
    shares = torch.cat((scores, own), -1).softmax(-1)
    mixed = shares[..., :count] @ values
    for s, (_, values) in enumerate(drafted):
        mixed = mixed + shares[..., count + s, None] * values
    return mixed
