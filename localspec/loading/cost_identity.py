from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from localspec.drafters.medusa import MedusaWeights
from localspec.identity import machine
from localspec.llama import devices, library
from localspec.llama.adapters import identity_with_adapters
from localspec.llama.context_params import kv_types
from localspec.llama.model import Model
from localspec.llama.options import ModelOptions


def cost_identity(
    models: Sequence[Model | MedusaWeights | None], options: ModelOptions
) -> dict[str, Any]:
    """Everything that the cost of a pass depends on; the first model is the target."""
    target = models[0]
    assert isinstance(target, Model)
    return {
        "machine": machine() | {"devices": [device.description for device in devices.devices()]},
        "library": library.version(),
        "models": [
            identity_with_adapters(model.path, model.adapters if isinstance(model, Model) else ())
            for model in models
            if model is not None
        ],
        "draft_threads": options.draft_threads,
        "gpu_layers": [options.gpu_layers, options.draft_gpu_layers],
        "kv": [options.kv_type_k, options.kv_type_v, *kv_types(options, target)],
        "flash_attention": options.flash_attention,
        "rpc": list(options.rpc),
        "kernels": [model.kernels.identity for model in models if isinstance(model, Model)],
    }
