"""An EAGLE-3 head (Li et al. 2025): initial weights, outputs, file (dev/heads.md)."""

import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from localspec.distill import network, weights
from localspec.distill.frequent import KeptTokens
from localspec.distill.kinds import Head, Tensors, TrainingBatch
from localspec.distill.losses import Output
from localspec.distill.pytorch import Tensor, torch
from localspec.distill.weights import TrainingFacts, Weights
from localspec.gguf.file import ARRAY, I32, U32, Array, GGUFFile

UNROLLED = 4
"""Training passes over the head's own states (section 3.2)."""


class EagleHead(Head):
    """One layer that reads a token and three of the target's states, or its own last state.
    `quant`: type of its matrices."""

    label = "eagle3"

    def __init__(
        self, file: GGUFFile, part: KeptTokens | None, quant: str = weights.Q8_0, seed: int = 0
    ) -> None:
        self._file, self._quant, self._seed = file, quant, seed
        super().__init__(file.path, part)

    @property
    def layers(self) -> tuple[int, int, int]:
        """The target layers whose inputs are read: an early, a middle and a late one."""
        count = self.shape.layers
        if count >= 8:
            return 2, count // 2, count - 3
        return min(1, count - 1), count // 2, count - 1

    def initial(self) -> Weights:
        """The target's last layer applied to the last of the three states, with little weight on
        the embedding. Without a `part` the head uses the target's output matrix."""
        random = np.random.Generator(np.random.PCG64(self._seed))
        target, width, last = self.target, self.shape.width, f"blk.{self.shape.layers - 1}"
        zeros = np.zeros((width, width), np.float32)
        made: Weights = {
            "fc.weight": np.concatenate([zeros, zeros, np.eye(width, dtype=np.float32)], 1),
            "output_norm.weight": target["output_norm.weight"].copy(),
            "blk.0.attn_norm_2.weight": target[f"{last}.attn_norm.weight"].copy(),
            "blk.0.attn_norm.weight": np.ones(width, np.float32),
            "blk.0.ffn_norm.weight": target[f"{last}.ffn_norm.weight"].copy(),
        }
        for name in ("attn_q", "attn_k", "attn_v"):
            values = target[f"{last}.{name}.weight"]
            beside = random.standard_normal(values.shape) * (0.1 * values.std())
            made[f"blk.0.{name}.weight"] = np.concatenate([beside.astype(np.float32), values], 1)
        for name in ("attn_output", "ffn_gate", "ffn_up", "ffn_down"):
            made[f"blk.0.{name}.weight"] = target[f"{last}.{name}.weight"].copy()
        if self.part is not None:
            made["output.weight"] = self.output_matrix()
        return made

    def outputs(self, made: Tensors, batch: TrainingBatch) -> list[Output]:
        with torch.no_grad():
            inputs, _ = network.layer_inputs(self.frozen, self.shape, batch.tokens)
            read = torch.cat([inputs[layer] for layer in self.layers], -1)
            # The token after each position; the last one of a text has no label.
            following = torch.roll(batch.tokens, -1, 1)
            words = torch.nn.functional.embedding(following, self.frozen["token_embd.weight"])
        matrix = made.get("output.weight")
        if matrix is None:
            matrix = network.output_matrix(self.frozen, self.shape)
        g = torch.nn.functional.linear(read, made["fc.weight"])
        found, cached = [], list[tuple[Tensor, Tensor]]()
        for turn in range(UNROLLED):
            y = self._layer(made, words, g, cached)
            where, labels = batch.later(1 + turn)
            places = batch.places[where] + turn
            normed = network.norm(y, made["output_norm.weight"], self.shape.epsilon)
            found.append(Output(normed.flatten(0, 1)[places], matrix, labels))
            # The head's own state of the position before replaces the target's.
            g = torch.roll(y, 1, 1)
        return found

    def _layer(
        self, made: Tensors, words: Tensor, g: Tensor, cached: list[tuple[Tensor, Tensor]]
    ) -> Tensor:
        epsilon = self.shape.epsilon
        x = torch.cat(
            (
                network.norm(words, made["blk.0.attn_norm.weight"], epsilon),
                network.norm(g, made["blk.0.attn_norm_2.weight"], epsilon),
            ),
            -1,
        )
        angles = network.rotations(self.shape, x.shape[1], x.device)
        queries, keys, values = network.project(made, self.shape, x, angles, "blk.0")
        cached.append((keys, values))
        mixed = _attend(queries, cached).transpose(1, 2).flatten(2)
        a = g + torch.nn.functional.linear(mixed, made["blk.0.attn_output.weight"])
        normed = network.norm(a, made["blk.0.ffn_norm.weight"], epsilon)
        return a + network.feed_forward(made, normed, "blk.0")

    def write(self, path: Path, made: Weights, trained: TrainingFacts) -> None:
        facts = [
            *weights.shape_facts(self.label, replace(self.shape, layers=1)),
            ("eagle3.target_layers", ARRAY, Array(struct.pack("<3i", *self.layers), I32, 3)),
            ("eagle3.target_hidden_size", U32, self.shape.width),
            *weights.tokenizer_of(self._file),
        ]
        weights.write_file(path, facts, trained, made, self._quant, self.token_map())


def _attend(queries: Tensor, cached: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """Attention of a token drafted after `turn` others (section 3.2): to these, at the `turn`
    positions before it, by the keys of their own turns; to earlier ones by those of turn 0.
    `cached`: keys and values of each turn, all [batch, heads, tokens, head width]."""
    turn = len(cached) - 1
    if not turn:
        return torch.nn.functional.scaled_dot_product_attention(queries, *cached[0], is_causal=True)
    queries = queries * queries.shape[-1] ** -0.5
    (keys, values), drafted = cached[0], cached[1:]
    # The token of turn s is turn - s positions earlier.
    drafted = [
        tuple(torch.roll(kv, turn - s, 2) for kv in pair) for s, pair in enumerate(drafted, 1)
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
