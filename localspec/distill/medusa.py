"""Medusa heads (Cai et al. 2024): initial weights, outputs, file (dev/heads.md)."""

from pathlib import Path

import numpy as np

from localspec.distill import network, weights
from localspec.distill.frequent import KeptTokens
from localspec.distill.kinds import Head, Tensors, TrainingBatch
from localspec.distill.losses import Output
from localspec.distill.pytorch import torch
from localspec.distill.weights import Fact, TrainingFacts, Weights
from localspec.gguf.file import STRING, U32

HEADS = 4


class MedusaHeads(Head):
    """Head k predicts from the target's last state the token k + 1 positions after the target's
    next one (section 2.1). `vocabulary`: the target's fingerprint."""

    label = "medusa"

    def __init__(
        self, target: Path, vocabulary: str, part: KeptTokens | None = None, heads: int = HEADS
    ) -> None:
        self._vocabulary, self._heads = vocabulary, heads
        super().__init__(target, part)

    def initial(self) -> Weights:
        """Blocks of zeros, with which heads repeat the target's token (section 2.1.1)."""
        width = self.shape.width
        made: Weights = {"medusa.output.weight": self.output_matrix()}
        for head in range(self._heads):
            made[f"medusa.{head}.blk.0.weight"] = np.zeros((width, width), np.float32)
            made[f"medusa.{head}.blk.0.bias"] = np.zeros(width, np.float32)
        return made

    def outputs(self, made: Tensors, batch: TrainingBatch) -> list[Output]:
        with torch.no_grad():
            last = network.states(self.frozen, self.shape, batch.tokens)
            read = last.flatten(0, 1)[batch.places]
        found = []
        for head in range(self._heads):
            where, labels = batch.later(head + 1)
            x, at = read[where], f"medusa.{head}.blk.0"
            inner = torch.nn.functional.linear(x, made[f"{at}.weight"], made[f"{at}.bias"])
            x = x + torch.nn.functional.silu(inner)
            found.append(Output(x, made["medusa.output.weight"], labels))
        return found

    def write(self, path: Path, made: Weights, trained: TrainingFacts) -> None:
        facts: list[Fact] = [
            ("general.architecture", STRING, "medusa"),
            ("medusa.embedding_length", U32, self.shape.width),
            ("medusa.vocab_size", U32, self.shape.vocabulary),
            ("medusa.head_count", U32, self._heads),
            ("medusa.block_count", U32, 1),
            ("medusa.target_vocabulary", STRING, self._vocabulary),
        ]
        weights.write_file(path, facts, trained, made, weights.F16, self.token_map())
