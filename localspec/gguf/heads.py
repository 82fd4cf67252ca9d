"""Trained heads: what their files say of the target they were made for.

llama.cpp asserts most of what is checked here, which ends the process.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from localspec.errors import DraftMismatch, LocalspecError, ModelInvalid
from localspec.gguf.file import GGUFFile, TensorInfo
from localspec.gguf.mtp import is_mtp_alone
from localspec.gguf.reader import read_gguf

EAGLE3, MEDUSA, MTP, DFLASH = "eagle3", "medusa", "mtp", "dflash"
NOT_READ = {
    "gemma4-assistant": "Gemma 4 assistant",
}
"""Architectures of heads that the llama.cpp here opens, and localspec does not draft with."""
_AGAIN = "Download it again, or convert it again with llama.cpp's convert_hf_to_gguf.py."


class HeadTarget(Protocol):
    """What heads have to fit; `localspec.llama.model.Model` is one."""

    @property
    def path(self) -> Path: ...

    @property
    def layers(self) -> int: ...

    @property
    def width(self) -> int: ...


@dataclass(frozen=True, slots=True)
class TappingHead:
    """A head that reads what goes into layers of its target.

    Attributes:
        layers: of the target, whose inputs it reads, in its order.
        target_width: of the target's hidden states.
        width: of its own.
        embeddings, output: whether it has such a matrix of its own; else the target's is used.
    """

    path: Path
    layers: tuple[int, ...]
    target_width: int
    width: int
    embeddings: bool
    output: bool

    def require_fits(self, target: HeadTarget) -> None:
        """Return if it was made for such a target.

        Raises:
            DraftMismatch: it was not.
        """
        why = None
        if self.target_width != target.width:
            why = f"hidden states of {self.target_width} numbers, and those of"
            why += f" {target.path.name} have {target.width}"
        elif max(self.layers) >= target.layers:
            why = f"the input of layer {max(self.layers)}, and {target.path.name} has layers 0 to"
            why += f" {target.layers - 1}"
        elif self.width != target.width and not (self.embeddings and self.output):
            why = f"embeddings and output of {self.width} numbers, which it lacks, and"
            why += f" those of {target.path.name} have {target.width}"
        if why is not None:
            raise DraftMismatch(
                f"{self.path.name} is the head of another model: it reads {why}. Give the head "
                "that was trained for this model, or leave it out with --draft none."
            )


def head_kind(path: Path) -> str | None:
    """What kind of trained head a file is: EAGLE3, MEDUSA, MTP, DFLASH, one of NOT_READ; None where
    it is none, or cannot be read."""
    try:
        file = read_gguf(path, tensors=False)
        if file.architecture in (EAGLE3, MEDUSA, DFLASH, *NOT_READ):
            return file.architecture
        if file.own_integer("nextn_predict_layers") and is_mtp_alone(read_gguf(path)):
            return MTP
    except LocalspecError:
        pass
    return None


def is_head(path: Path) -> bool:
    """Whether a file is a trained head; False where it cannot be read."""
    return head_kind(path) is not None


def not_read(path: Path, kind: str) -> ModelInvalid:
    """Why a head of NOT_READ does not draft here."""
    return ModelInvalid(
        f"{path.name} is a {NOT_READ[kind]} head (architecture {kind}), which localspec does not "
        "support, though llama.cpp can compute it. Choose an EAGLE-3 head, a model with MTP "
        "layers, or a draft model, or leave it out with --draft none."
    )


def require_no_head(path: Path) -> None:
    """Return unless a file is a trained head, which generates nothing by itself.

    Raises:
        ModelInvalid: it is.
    """
    if is_head(path):
        raise ModelInvalid(
            f"{path} is a trained head, which drafts for the model that it was trained with. Give "
            "it with --draft, and that model with --model."
        )


def read_eagle(path: Path) -> TappingHead:
    """Read and check an EAGLE-3 head.

    Raises:
        ModelNotFound: no such file.
        ModelInvalid: cut short, damaged, or not what llama.cpp can compute.
    """
    file = read_gguf(path)
    shapes = {tensor.name: tensor for tensor in file.tensors}
    numbers = target_layers(file)
    if len(numbers) != 3:
        raise damaged(path, f"it names {len(numbers)} layers of its target instead of three")
    needed = {"target_hidden_size", "embedding_length", "feed_forward_length", "block_count"}
    sizes = {name: file.own_integer(name) or 0 for name in sorted(needed)}
    lacking = [name for name, value in sizes.items() if value < 1]
    if lacking:
        raise damaged(path, f"its metadata lacks {EAGLE3}.{lacking[0]}")
    if sizes["block_count"] != 1:
        raise damaged(path, f"it has {sizes['block_count']} layers of its own instead of one")
    require_attention(file, sizes["embedding_length"])
    for name in ("fc.weight", "output_norm.weight", "blk.0.attn_q.weight", "blk.0.ffn_down.weight"):
        if name not in shapes:
            raise damaged(path, f"the tensor {name} is missing")
    require_map(file, shapes)
    return TappingHead(
        path,
        numbers,
        sizes["target_hidden_size"],
        sizes["embedding_length"],
        "token_embd.weight" in shapes,
        "output.weight" in shapes,
    )


def target_layers(file: GGUFFile) -> tuple[int, ...]:
    """The layers that a head's file names; none where one of them cannot be meant."""
    layers = file.array(f"{file.architecture}.target_layers")
    numbers = [] if layers is None or layers.strings else [int(layer) for layer in layers]
    return tuple(numbers) if min(numbers, default=-1) >= 0 else ()


def require_attention(file: GGUFFile, width: int) -> None:
    """Return if the sizes of a head's attention fit each other.

    Raises:
        ModelInvalid: they do not.
    """
    heads = file.own_integer("attention.head_count") or 0
    groups = file.own_integer("attention.head_count_kv") or heads
    if heads < 1 or groups < 1 or heads % groups:
        raise damaged(file.path, f"it has {heads} attention heads and {groups} for keys and values")
    lengths = {
        file.own_integer(f"attention.{name}_length") or width // heads for name in ("key", "value")
    }
    rotated = file.own_integer("rope.dimension_count") or max(lengths)
    if len(lengths) != 1 or rotated > min(lengths) or rotated % 2:
        raise damaged(file.path, "the sizes of its attention do not fit each other")


def require_map(file: GGUFFile, tensors: Mapping[str, TensorInfo]) -> None:
    """Return if a head says all tokens, or has a sound map of those that it says (d2t).

    Raises:
        ModelInvalid: it has another one.
    """
    d2t = tensors.get("d2t")
    if d2t is None:
        return
    tokens = file.array("tokenizer.ggml.tokens")
    ids = _ids(file, d2t)
    if ids is None or not len(ids) or ids.min() < 0 or ids.max() >= len(tokens or ()):
        raise damaged(file.path, "d2t names tokens that its vocabulary does not have")
    if "output.weight" not in tensors:
        raise damaged(file.path, "it has d2t, and no output matrix of its own")


def _ids(file: GGUFFile, tensor: TensorInfo) -> npt.NDArray[np.int64] | None:
    """Token ids; None where they are not of the type that llama.cpp asserts."""
    if tensor.type != "I64":
        return None
    return np.fromfile(file.parts[tensor.part], "<i8", tensor.elements, offset=tensor.offset)


def damaged(path: Path, why: str) -> ModelInvalid:
    """What is wrong with a head's file, and what to do."""
    return ModelInvalid(f"{path.name} cannot draft: {why}. {_AGAIN}")
