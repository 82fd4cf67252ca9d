"""MTP (next-n) layers: checks of what llama.cpp asserts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from localspec.errors import DraftMismatch, LocalspecError, ModelInvalid
from localspec.gguf.file import GGUFFile
from localspec.gguf.reader import read_gguf
from localspec.llama.options import NEXTN_GRAPHS, ONE_NEXTN

_AGAIN = "Download it again, or convert it again with llama.cpp's convert_hf_to_gguf.py."
_FIRST = "blk.0.attn_norm.weight"
_EXPERTS = "ffn_gate_inp.weight"


@dataclass(frozen=True, slots=True)
class MtpLayers:
    """Layers that predict ahead, behind the `before` others of a model."""

    path: Path
    architecture: str
    before: int
    width: int

    def require_fits(self, target: GGUFFile) -> None:
        """A DraftMismatch if they were trained with another target."""
        theirs = (
            target.architecture,
            (target.own_integer("block_count") or 0)
            - (target.own_integer("nextn_predict_layers") or 0),
            target.own_integer("embedding_length"),
        )
        own = (self.architecture, self.before, self.width)
        if theirs != own:
            raise DraftMismatch(
                f"{self.path.name} has the MTP layer of another model: that is of architecture "
                f"{own[0]}, with {own[1]} layers and states of {own[2]} numbers, and "
                f"{target.path.name} is of {theirs[0]}, with {theirs[1]} and {theirs[2]}. Give the "
                "one that was trained with this model, or leave it out with --draft none."
            )


def has_mtp(path: Path) -> bool:
    """Whether a file has MTP layers that can draft here."""
    try:
        return read_mtp(read_gguf(path)) is not None
    except LocalspecError:
        return False


def is_mtp_alone(file: GGUFFile) -> bool:
    """Whether it has MTP layers, valid or not, without their model."""
    layers = file.own_integer("nextn_predict_layers") or 0
    return (
        layers > 0
        and file.architecture in NEXTN_GRAPHS
        and all(tensor.name != _FIRST for tensor in file.tensors)
        and any(".nextn." in tensor.name for tensor in file.tensors)
    )


def read_mtp(file: GGUFFile) -> MtpLayers | None:
    """Read and check MTP layers, None without any; a ModelInvalid if llama.cpp cannot compute
    them."""
    count = file.own_integer("nextn_predict_layers") or 0
    shapes = {tensor.name: tensor.shape for tensor in file.tensors}
    if count < 1 or not any(".nextn." in name for name in shapes):
        return None  # converted without them
    name, architecture = file.path.name, file.architecture
    layers, width = file.own_integer("block_count") or 0, file.own_integer("embedding_length") or 0
    prefix = f"blk.{layers - count}."
    needed: dict[str, tuple[int, ...]] = {
        "nextn.eh_proj.weight": (2 * width, width),
        "nextn.enorm.weight": (width,),
        "nextn.hnorm.weight": (width,),
    }
    experts = () if architecture != "glm4moe" else (_EXPERTS,)
    missing = [prefix + tensor for tensor in (*needed, *experts) if prefix + tensor not in shapes]
    odd = [prefix + one for one, shape in needed.items() if shapes.get(prefix + one) != shape]
    why = None
    if architecture not in NEXTN_GRAPHS:
        why = f"llama.cpp computes none of architecture {architecture}"
    elif count > 1 and architecture in ONE_NEXTN:
        why = f"it has {count}, and of architecture {architecture} llama.cpp computes a single one"
    elif not 0 < count < layers or width < 1:
        why = f"it names {count} of {layers} layers, and a width of {width}"
    elif missing:
        why = f"the tensor {missing[0]} is missing"
    elif odd:
        why = f"the tensor {odd[0]} is of shape {shapes[odd[0]]}, which does not fit {width}"
    if why is not None:
        raise ModelInvalid(
            f"The MTP layers of {name} cannot draft: {why}. {_AGAIN} Without them it is opened "
            "with --draft none."
        )
    return MtpLayers(file.path, architecture, layers - count, width)
