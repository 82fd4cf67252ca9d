"""MTP (next-n) layers: checks of llama.cpp's assertions."""

from pathlib import Path

from localspec.errors import DraftMismatch, ModelInvalid
from localspec.gguf.file import GGUFFile
from localspec.gguf.reader import readable
from localspec.llama.options import NEXTN_GRAPHS, ONE_NEXTN

_LAYERS = "nextn_predict_layers"
_EXPERTS = "ffn_gate_inp.weight"


def has_mtp(path: Path) -> bool:
    """Whether a file has MTP layers that can draft here."""
    file = readable(path)
    return file is not None and _has_any(file) and _fault(file) is None


def is_mtp_only(file: GGUFFile) -> bool:
    """Whether a file has MTP layers, valid or not, without their model."""
    known = file.architecture in NEXTN_GRAPHS
    return known and _has_any(file) and "blk.0.attn_norm.weight" not in file.by_name


def require_mtp(file: GGUFFile, target: GGUFFile) -> None:
    """Raise ModelInvalid if llama.cpp cannot compute a file's MTP layers, and DraftMismatch if
    they were trained with another target."""
    fault = _fault(file)
    if fault is not None:
        raise ModelInvalid(
            f"The MTP layers of {file.path.name} cannot draft: {fault}. Download it again, or "
            "convert it again with llama.cpp's convert_hf_to_gguf.py. Without them it is opened "
            "with --draft none."
        )
    own, theirs = _trunk(file), _trunk(target)
    if own != theirs:
        raise DraftMismatch(
            f"{file.path.name} has the MTP layer of another model: {own[0]} with {own[1]} layers "
            f"and states of {own[2]} numbers. {target.path.name} is {theirs[0]} with {theirs[1]} "
            f"layers and states of {theirs[2]}. Give the MTP layer that was trained with this "
            "model, or leave it out with --draft none."
        )


def _has_any(file: GGUFFile) -> bool:
    """Whether there are tensors of MTP layers: models can be converted without them."""
    return file.count(_LAYERS) > 0 and any(".nextn." in name for name in file.by_name)


def _trunk(file: GGUFFile) -> tuple[str, int, int]:
    """A model's architecture, number of other layers, and width of states."""
    layers = file.count("block_count") - file.count(_LAYERS)
    return file.architecture, layers, file.count("embedding_length")


def _fault(file: GGUFFile) -> str | None:
    """Why a file's MTP layers cannot draft; None if they can."""
    count, (architecture, before, width) = file.count(_LAYERS), _trunk(file)
    tensors, prefix = file.by_name, f"blk.{before}."
    needed: dict[str, tuple[int, ...]] = {
        "nextn.eh_proj.weight": (2 * width, width),
        "nextn.enorm.weight": (width,),
        "nextn.hnorm.weight": (width,),
    }
    lacking = [
        name
        for name, shape in needed.items()
        if (tensor := tensors.get(prefix + name)) is None or tensor.shape != shape
    ]
    if architecture == "glm4moe" and prefix + _EXPERTS not in tensors:
        lacking.append(_EXPERTS)
    if architecture not in NEXTN_GRAPHS:
        return f"llama.cpp does not support those of architecture {architecture}"
    if count > 1 and architecture in ONE_NEXTN:
        return f"it has {count}, but llama.cpp computes only one for architecture {architecture}"
    if before < 1 or width < 1:
        return f"its metadata gives {count} of {before + count} layers, and a width of {width}"
    if lacking:
        return f"the tensor {prefix}{lacking[0]} is missing, or of another shape"
    return None
