"""Check that a LoRA adapter fits a model. llama.cpp compares two of four dimensions and asserts the
rest (`llama_adapter_lora_init_impl`, llama-adapter.cpp; `build_lora_mm`, llama-graph.cpp)."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from localspec.errors import ModelInvalid
from localspec.gguf.file import FLOAT, GGUFFile, TensorInfo
from localspec.gguf.reader import read_gguf
from localspec.llama.options import Adapter
from localspec.text import printable

_PAIR, NORM = ("lora_a", "lora_b"), "_norm.weight"
_TYPES = ("F32", "F16", "BF16", "Q8_0")
"""Tensor types that convert_lora_to_gguf.py writes."""
_ALPHA, _INVOCATION = "adapter.lora.alpha", "adapter.alora.invocation_tokens"
_EMBEDDINGS = "token_embd.weight"


def require_fitting(adapters: Sequence[Adapter], model: Path) -> None:
    """Raise ModelNotFound, or ModelInvalid if an adapter is damaged, is not a LoRA adapter, or
    belongs to another model."""
    for adapter in adapters:
        _require_fits(read_gguf(adapter.path), read_gguf(model))


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
            f"{file.path} is an adapter for the architecture "
            f"{printable(file.architecture, 40)}, but {base.path.name} has the architecture "
            f"{printable(base.architecture, 40)}. Name the model that it was trained for with -m."
        )
    if file.kinds.get(_ALPHA, FLOAT) != FLOAT:
        raise _unfit(file, base, f"{_ALPHA} is not a 32-bit number")
    pairs: dict[str, dict[str, TensorInfo]] = {}
    for tensor in file.tensors:
        name, _, ending = tensor.name.rpartition(".")
        if ending in _PAIR:
            pairs.setdefault(name, {})[ending] = tensor
        elif not tensor.name.endswith(NORM):  # llama.cpp leaves norms as they are
            raise _unfit(file, base, f"it cannot change {printable(tensor.name, 80)}")
    if not pairs:
        raise _unfit(file, base, "it changes nothing")
    for name, both in pairs.items():
        if len(both) < 2 or not _fits(base.by_name, name, *(both[ending] for ending in _PAIR)):
            raise _unfit(file, base, f"it cannot change {printable(name, 80)}")


def _fits(tensors: Mapping[str, TensorInfo], name: str, a: TensorInfo, b: TensorInfo) -> bool:
    """Whether llama.cpp can add a pair of matrices to a tensor."""
    changed = tensors.get(name)
    if changed is None or any(matrix.type not in _TYPES for matrix in (a, b)):
        return False
    shape, first, second = ((*tensor.shape, 1, 1, 1, 1)[:4] for tensor in (changed, a, b))
    rank = second[0]
    wanted = [(shape[0], rank, *shape[2:]), (rank, *shape[1:])]
    if name == _EMBEDDINGS:
        wanted = [(rank, shape[1], 1, 1), (rank, shape[0], 1, 1)]  # A has a row for each token
    # NVFP4 is asserted in llm_graph_context::build_ffn; embeddings must not be the output as well.
    adapts = changed.type != "NVFP4" and (name != _EMBEDDINGS or "output.weight" in tensors)
    return adapts and rank > 0 and [first, second] == wanted


def _unfit(file: GGUFFile, base: GGUFFile, why: str) -> ModelInvalid:
    return ModelInvalid(
        f"{file.path} does not fit {base.path.name}: {why}. Name the model that it was trained for "
        "with -m, or convert the adapter again with llama.cpp's convert_lora_to_gguf.py."
    )
