"""Common parts of the kinds of drafts, which are in `draft`, `eagle` and `medusa`."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from localspec.bench.scaled_gguf import Shape
from localspec.distill import network, weights
from localspec.distill.frequent import KeptTokens
from localspec.distill.losses import Labels, Output
from localspec.distill.pytorch import Tensor, torch
from localspec.distill.weights import TrainingFacts, Weights
from localspec.gguf.writer import NewTensor

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class TrainingBatch:
    """A batch of answers. `tokens`: int [answers, longest], padded at the end. `places`: int [n],
    indices into flattened `tokens` of positions with labels; `left`: int [n], how many more
    positions of the same answer follow."""

    tokens: Tensor
    places: Tensor
    left: Tensor
    labels: Labels

    def later(self, count: int) -> tuple[Tensor, Labels]:
        """Indices of positions that at least `count` others follow, and the labels of these."""
        found = torch.nonzero(self.left >= count)[:, 0]
        return found, self.labels.at(found + count)


class DraftKind(ABC):
    """A draft to train. `shape`: of the draft, or of a head's target; `part`: the target's tokens
    that it has, None for all; `label`: for its file name; `parameters`: number of trained ones."""

    shape: Shape
    part: KeptTokens | None
    label: str
    parameters: int
    description: str

    @abstractmethod
    def initial(self) -> Weights: ...

    def begin(self, put: Callable[[npt.NDArray[Any]], Tensor]) -> None:  # noqa: B027
        """Prepare for `outputs`; `put` makes tensors on the training device."""

    @abstractmethod
    def outputs(self, made: Tensors, batch: TrainingBatch) -> list[Output]:
        """The outputs for a batch, by depth."""

    @abstractmethod
    def write(self, path: Path, made: Weights, trained: TrainingFacts) -> None: ...


class Head(DraftKind):
    """A head that reads hidden states of its frozen target."""

    def __init__(self, target: Path, part: KeptTokens | None) -> None:
        self.shape, self.target = weights.read(target)
        self.part = part
        self.frozen: Tensors = {}
        self.parameters = sum(values.size for values in self.initial().values())
        self.description = f"{self.label}, {self.parameters / 1e6:.1f} M parameters"

    def begin(self, put: Callable[[npt.NDArray[Any]], Tensor]) -> None:
        self.frozen = {name: put(values) for name, values in self.target.items()}

    def output_matrix(self) -> npt.NDArray[np.float32]:
        """The target's output matrix for the tokens that the head can predict."""
        matrix: npt.NDArray[np.float32] = network.output_matrix(self.target, self.shape)
        return matrix.copy() if self.part is None else matrix[self.part.kept]

    def token_map(self) -> list[NewTensor]:
        """The target's id of each row of the output matrix."""
        if self.part is None:
            return []
        kept = self.part.kept
        return [NewTensor("d2t", kept.shape, "I64", kept.astype("<i8").tobytes())]
