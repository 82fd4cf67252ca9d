"""What is trained: a draft model, an EAGLE-3 head, or Medusa heads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from localspec.distill import network
from localspec.distill.losses import Wanted
from localspec.distill.shape import Shape
from localspec.distill.torch_room import torch_package

Tensor = Any
Tensors = Mapping[str, Tensor]
UNROLLED = 4
"""Passes of an EAGLE-3 head over its own states (Li et al. 2025, section 3.2)."""


@dataclass(frozen=True, slots=True)
class TrainingBatch:
    """Some answers.

    Attributes:
        tokens: int [answers, longest], padded at the end.
        places: int [n], indices into flattened `tokens` after which something is wanted.
        left: int [n], how many more of the same answer follow.
    """

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
    """Head k predicts from the target's last state the token k + 1 after the target's own.

    Cai et al. 2024, section 2.1. `shape` and `target` are the target's, which stays.
    """

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

    Attributes:
        shape: the head's; its width is the target's.
        target_shape, target: the target and its weights, which stay.
        layers: of the target, whose inputs it reads.
    """

    shape: Shape
    target_shape: Shape
    target: Tensors
    layers: tuple[int, ...]

    def outputs(self, weights: Tensors, batch: TrainingBatch) -> list[Output]:
        torch = torch_package()
        with torch.no_grad():
            inputs, _ = network.layer_inputs(self.target, self.target_shape, batch.tokens)
            read = torch.cat([inputs[layer] for layer in self.layers], -1)
            # The token behind each place; the last place of a text has none, and is not asked.
            following = torch.roll(batch.tokens, -1, 1)
            words = torch.nn.functional.embedding(following, self.target["token_embd.weight"])
        matrix = network.output_matrix(self.target, self.target_shape)
        g = torch.nn.functional.linear(read, weights["fc.weight"])
        found = []
        for turn in range(UNROLLED):
            y = self._layer(weights, words, g)
            where, wanted = batch.later(1 + turn)
            places = batch.places[where] + turn
            normed = network.norm(y, weights["output_norm.weight"], self.shape.epsilon)
            found.append(Output(normed.flatten(0, 1)[places], matrix, wanted))
            g = torch.roll(y, 1, 1)  # what it made of the place before stands for the target's
        return found

    def _layer(self, weights: Tensors, words: Tensor, g: Tensor) -> Tensor:
        torch, epsilon = torch_package(), self.shape.epsilon
        x = torch.cat(
            (
                network.norm(words, weights["blk.0.attn_norm.weight"], epsilon),
                network.norm(g, weights["blk.0.attn_norm_2.weight"], epsilon),
            ),
            -1,
        )
        turns = network.rotations(self.shape, x.shape[1], x.device)
        a = g + network.attention(weights, self.shape, x, turns, "blk.0")
        normed = network.norm(a, weights["blk.0.ffn_norm.weight"], epsilon)
        return a + network.feed_forward(weights, normed, "blk.0")
