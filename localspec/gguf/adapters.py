"""Check that a LoRA adapter fits a model. llama.cpp compares two of four dimensions and asserts the
rest (`llama_adapter_lora_init_impl`, llama-adapter.cpp; `build_lora_mm`, llama-graph.cpp)."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from localspec.errors import ModelInvalid
from localspec.gguf.file import FLOAT, GGUFFile, TensorInfo
from localspec.gguf.reader import read_gguf
from localspec.llama.adapters import Adapter
from localspec.text import printable

A, B, NORM = ".lora_a", ".lora_b", "_norm.weight"
_TYPES = ("F32", "F16", "BF16", "Q8_0")
"""Tensor types that convert_lora_to_gguf.py writes."""
_ALPHA, _INVOCATION = "adapter.lora.alpha", "adapter.alora.invocation_tokens"
_EMBEDDINGS = "token_embd.weight"


def require_fitting(adapters: Sequence[Adapter], model: Path) -> None:
    """Raise ModelNotFound, or ModelInvalid if an adapter is damaged, is not a LoRA adapter, or
    belongs to another model."""
    if not adapters:
        return
    base = read_gguf(model)
    for adapter in adapters:
        _require_fits(read_gguf(adapter.path), base)


def _require_fits(file: GGUFFile, base: GGUFFile) -> None:
    if file.text("general.type") != "adapter" or file.text("adapter.type") != "lora":
        raise ModelInvalid(
            f"{file.path} is not a LoRA adapter. Convert one with llama.cpp's "
            "convert_lora_to_gguf.py; a model is named with -m."
        )
    if _INVOCATION in file.metadata:
        raise ModelInvalid(
            f"{file.path} is an activated adapter (aLoRA), which takes effect only after certain "
            "tokens. localspec supports only adapters that always apply: leave it out, or choose "
            "another."
        )
    if file.architecture != base.architecture:
        raise ModelInvalid(
            f"{file.path} is an adapter of a model of architecture "
            f"{printable(file.architecture, 40)}, and {base.path.name} is one of "
            f"{printable(base.architecture, 40)}. Name the model that it was trained for with -m."
        )
    if file.kinds.get(_ALPHA, FLOAT) != FLOAT:
        raise _unfit(file, base, "its alpha is not a 32-bit number")
    tensors, pairs = base.by_name, _pairs(file, base)
    if not pairs:
        raise _unfit(file, base, "it changes nothing")
    for name, (a, b) in pairs.items():
        why = _misfit(tensors.get(name), a, b, tensors)
        if why is not None:
            raise _unfit(file, base, f"{printable(name, 80)} {why}")


def _pairs(file: GGUFFile, base: GGUFFile) -> dict[str, tuple[TensorInfo, TensorInfo]]:
    """Both matrices of each changed tensor."""
    found: dict[str, dict[str, TensorInfo]] = {}
    for tensor in file.tensors:
        ending = next((end for end in (A, B) if tensor.name.endswith(end)), None)
        if ending is not None:
            found.setdefault(tensor.name.removesuffix(ending), {})[ending] = tensor
        elif not tensor.name.endswith(NORM):  # llama.cpp leaves norms as they are
            raise _unfit(file, base, f"its tensor {printable(tensor.name, 80)} is not part of one")
    for name, both in found.items():
        if len(both) < 2:
            raise _unfit(file, base, f"{printable(name, 80)} has one matrix of two")
    return {name: (both[A], both[B]) for name, both in found.items()}


def _misfit(
    changed: TensorInfo | None, a: TensorInfo, b: TensorInfo, tensors: Mapping[str, TensorInfo]
) -> str | None:
    """Why a pair of matrices cannot be added to a tensor; None if it can."""
    if changed is None:
        return "is not in the model"
    if any(matrix.type not in _TYPES for matrix in (a, b)):
        return f"is changed by matrices that are not in {', '.join(_TYPES)}"
    if changed.type == "NVFP4":  # asserted in llm_graph_context::build_ffn
        return "is in NVFP4, which llama.cpp cannot adapt"
    shape, first, second = ((*tensor.shape, 1, 1, 1, 1)[:4] for tensor in (changed, a, b))
    rank = second[0]
    wanted = [(shape[0], rank, *shape[2:]), (rank, *shape[1:])]
    if changed.name == _EMBEDDINGS:
        wanted = [(rank, shape[1], 1, 1), (rank, shape[0], 1, 1)]  # A has a row for each token
        if "output.weight" not in tensors:
            return "is the output as well, which llama.cpp cannot adapt"
    if not rank or [first, second] != wanted:
        return "has another shape in the model"
    return None


def _unfit(file: GGUFFile, base: GGUFFile, why: str) -> ModelInvalid:
    return ModelInvalid(
        f"{file.path} does not fit {base.path.name}: {why}. Name the model that it was trained for "
        "with -m, or convert the adapter again with llama.cpp's convert_lora_to_gguf.py."
    )
