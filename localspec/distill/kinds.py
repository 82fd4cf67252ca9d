"""What is trained, whatever its kind; each kind is a file: `draft`, `eagle`, `medusa`."""

from __future__ import annotations

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
from localspec.distill.losses import Output, Wanted
from localspec.distill.pytorch import torch_package
from localspec.distill.weights import Trained, Weights
from localspec.gguf.writer import NewTensor

Tensor = Any
Tensors = Mapping[str, Tensor]


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


class Kind(ABC):
    """A draft to be trained. `shape`: of the draft, of a head its target's; `label`: for the file's
    name; `parameters` are trained; `part`: the target's tokens that it has, None for all."""

    shape: Shape
    part: KeptTokens | None
    label: str
    parameters: int
    description: str

    @abstractmethod
    def initial(self) -> Weights: ...

    def begin(self, put: Callable[[npt.NDArray[Any]], Tensor]) -> None:  # noqa: B027
        """Before the first `outputs`; `put` makes tensors where it is trained."""

    @abstractmethod
    def outputs(self, made: Tensors, batch: TrainingBatch) -> list[Output]:
        """What the weights make of a batch, by depth."""

    @abstractmethod
    def write(self, path: Path, made: Weights, trained: Trained) -> None: ...


class Head(Kind):
    """Reads the hidden states of its target, which stays."""

    def __init__(self, target: Path, part: KeptTokens | None) -> None:
        self.shape, self.target = weights.read(target)
        self.part = part
        self.frozen: Tensors = {}
        self.parameters = sum(values.size for values in self.initial().values())
        self.description = f"{self.label}, {self.parameters / 1e6:.1f} M parameters"

    def begin(self, put: Callable[[npt.NDArray[Any]], Tensor]) -> None:
        self.frozen = {name: put(values) for name, values in self.target.items()}

    def output_matrix(self) -> npt.NDArray[np.float32]:
        """The target's, of the tokens that the head can say."""
        matrix: npt.NDArray[np.float32] = network.output_matrix(self.target, self.shape)
        return matrix.copy() if self.part is None else matrix[self.part.kept]

    def token_map(self) -> list[NewTensor]:
        """The target's id of each row of the output matrix."""
        if self.part is None:
            return []
        kept = self.part.kept
        return [NewTensor("d2t", kept.shape, "I64", kept.astype("<i8").tobytes())]
