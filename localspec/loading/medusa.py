"""Reading Medusa heads; the file layout is in dev/heads.md. Loads llama.cpp."""

from __future__ import annotations

from typing import Any

import numpy as np

from localspec.drafters.medusa import Matrix, MedusaWeights
from localspec.errors import DraftMismatch
from localspec.gguf.file import GGUFFile
from localspec.gguf.heads import d2t_ids, damaged_head, require_sizes
from localspec.llama.hidden import require
from localspec.llama.model import Model
from localspec.llama.options import ModelOptions

_MOST_HEADS = 32
_TYPES = {"F32": "<f4", "F16": "<f2"}


def read_medusa(file: GGUFFile, target: Model, options: ModelOptions) -> MedusaWeights:
    """Read the heads. Raises ModelInvalid if the layout differs from dev/heads.md, DraftMismatch
    for another target, or several answers."""
    path, tensors = file.path, file.by_name
    sizes = require_sizes(file, "embedding_length", "vocab_size", "head_count")
    width, tokens, count = sizes.values()
    blocks = file.own_integer("block_count")
    if blocks is None or blocks < 0:
        raise damaged_head(path, "its metadata lacks medusa.block_count")
    if count > _MOST_HEADS or len(file.parts) > 1:
        raise damaged_head(path, f"it has {count} heads in {len(file.parts)} files")
    ids = d2t_ids(file, tensors["d2t"], tokens) if "d2t" in tensors else None
    require(target, (target.layers,))
    _require_fits(file, width, tokens, target)
    if options.parallel > 1:
        raise DraftMismatch(
            f"{path.name} has Medusa heads, which draft for one answer at a time: of passes that "
            "answers share, llama.cpp gives no last hidden states. Open the model with "
            "parallel=1, or choose another drafter."
        )

    def matrix(name: str, *shape: int) -> Matrix:
        tensor = tensors.get(name)
        if tensor is None:
            raise damaged_head(path, f"the tensor {name} is missing")
        if tensor.shape != shape[::-1] or tensor.type not in _TYPES:
            raise damaged_head(path, f"the tensor {name} has another shape or type than it should")
        kind: Any = _TYPES[tensor.type]
        found = np.fromfile(path, kind, tensor.elements, offset=tensor.offset)
        return np.ascontiguousarray(found.reshape(shape), np.float32)

    def block(name: str) -> tuple[Matrix, Matrix | None]:
        weight, bias = matrix(f"{name}.weight", width, width), f"{name}.bias"
        return weight, matrix(bias, width) if bias in tensors else None

    own = [f"medusa.{head}.output.weight" for head in range(count)]
    names = [name if name in tensors else "medusa.output.weight" for name in own]
    rows = tokens if ids is None else len(ids)
    # One matrix may serve all of them.
    outputs = {name: matrix(name, rows, width) for name in dict.fromkeys(names)}
    return MedusaWeights(
        path,
        file.text("general.name") or path.stem,
        file.weight_bytes,
        [[block(f"medusa.{head}.blk.{n}") for n in range(blocks)] for head in range(count)],
        [outputs[name] for name in names],
        ids,
    )


def _require_fits(file: GGUFFile, width: int, tokens: int, target: Model) -> None:
    mine, known = target.vocabulary, file.text("medusa.target_vocabulary")
    why = None
    if width != target.width:
        why = f"hidden states of {width} numbers, and those of {target.path.name} have"
        why += f" {target.width}"
    elif tokens != mine.size or (known and known != mine.fingerprint()):
        why = f"another vocabulary than that of {target.path.name}"
    if why is not None:
        raise DraftMismatch(
            f"{file.path.name} has the heads of another model: they are for {why}. Give those "
            "that were trained for this model, or leave them out with --draft none."
        )
