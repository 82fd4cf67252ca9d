"""Medusa heads in a GGUF file; the layout is in dev/heads.md."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from localspec.errors import DraftMismatch
from localspec.gguf.file import GGUFFile, TensorInfo
from localspec.gguf.heads import d2t_ids, damaged, required
from localspec.gguf.reader import read_gguf

if TYPE_CHECKING:  # it loads llama.cpp
    from localspec.llama.model import Model

MOST_HEADS = 32
_TYPES = {"F32": "<f4", "F16": "<f2"}

Matrix = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class MedusaHeads:
    """`width`: of the target's hidden states; `tokens`: of its vocabulary, whose fingerprint is
    `vocabulary`, empty if unknown; `blocks`: in each head."""

    file: GGUFFile
    width: int
    tokens: int
    heads: int
    blocks: int
    vocabulary: str

    @property
    def path(self) -> Path:
        return self.file.path

    @property
    def size(self) -> int:
        return self.file.weight_bytes

    def ids(self) -> npt.NDArray[np.int64] | None:
        """The target's token of each row of the outputs; None for all in order."""
        tensor = self._tensor("d2t")
        return None if tensor is None else d2t_ids(self.file, tensor, self.tokens)

    def block(self, head: int, number: int) -> tuple[Matrix, Matrix | None]:
        """Weight [width, width] and bias [width] of a residual block."""
        name = f"medusa.{head}.blk.{number}"
        weight = self._matrix(f"{name}.weight", self.width, self.width)
        if self._tensor(f"{name}.bias") is None:
            return weight, None
        return weight, self._matrix(f"{name}.bias", self.width)

    def output(self, head: int) -> Matrix:
        """The projection [rows, width] of a head."""
        ids = self._tensor("d2t")
        rows = self.tokens if ids is None else ids.elements
        return self._matrix(self.output_name(head), rows, self.width)

    def output_name(self, head: int) -> str:
        """The tensor with a head's own projection, or the shared one."""
        own = f"medusa.{head}.output.weight"
        return own if self._tensor(own) is not None else "medusa.output.weight"

    def require_fits(self, target: Model, tokens: int, vocabulary: str) -> None:
        """A DraftMismatch if the target has another width, size of vocabulary or fingerprint."""
        why = None
        if self.width != target.width:
            why = f"hidden states of {self.width} numbers, and those of {target.path.name} have"
            why += f" {target.width}"
        elif self.tokens != tokens or (self.vocabulary and self.vocabulary != vocabulary):
            why = f"another vocabulary than that of {target.path.name}"
        if why is not None:
            raise DraftMismatch(
                f"{self.path.name} has the heads of another model: they are for {why}. Give those "
                "that were trained for this model, or leave them out with --draft none."
            )

    def _tensor(self, name: str) -> TensorInfo | None:
        return next((tensor for tensor in self.file.tensors if tensor.name == name), None)

    def _matrix(self, name: str, *shape: int) -> Matrix:
        tensor = self._tensor(name)
        if tensor is None:
            raise damaged(self.path, f"the tensor {name} is missing")
        if tensor.shape != shape[::-1] or tensor.type not in _TYPES:
            raise damaged(self.path, f"the tensor {name} has another shape or type than it should")
        kind: Any = _TYPES[tensor.type]
        found = np.fromfile(self.path, kind, tensor.elements, offset=tensor.offset)
        return np.ascontiguousarray(found.reshape(shape), np.float32)


def read_medusa(path: Path) -> MedusaHeads:
    """Read the metadata; tensors are checked when they are read. Raises ModelNotFound, or
    ModelInvalid if it is not as dev/heads.md says."""
    file = read_gguf(path)
    sizes = required(file, "embedding_length", "vocab_size", "head_count")
    width, tokens, heads = sizes.values()
    blocks = file.own_integer("block_count")
    if blocks is None or blocks < 0:
        raise damaged(path, "its metadata lacks medusa.block_count")
    if heads > MOST_HEADS or len(file.parts) > 1:
        raise damaged(path, f"it has {heads} heads in {len(file.parts)} files")
    found = MedusaHeads(
        file, width, tokens, heads, blocks, file.text("medusa.target_vocabulary") or ""
    )
    found.ids()
    return found
