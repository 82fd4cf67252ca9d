"""Opening the caches of a target, here or on RPC servers; what the cost of a pass depends on."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from localspec.drafters.medusa import MedusaWeights
from localspec.identity import machine
from localspec.llama import devices, library
from localspec.llama.context import Context
from localspec.llama.model import Model
from localspec.llama.native_context import SharedContext, kv_types
from localspec.llama.options import ModelOptions, identity_with_adapters

Cache = Context | SharedContext
"""A cache for one answer, or for several."""


def open_cache(model: Model, options: ModelOptions, *, each: bool = False) -> Cache:
    """Open a cache for one answer or several, with a context for all together, or for `each`."""
    if options.parallel > 1:
        return SharedContext(model, options, each=each)
    return open_context(model, options)


def open_context(model: Model, options: ModelOptions) -> Context:
    if not options.rpc:
        return Context.open(model, options)
    from localspec.remote.target import RemoteContext, RemoteModel

    assert isinstance(model, RemoteModel)
    return RemoteContext(model, replace(options, rpc=()))


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
        "threads": options.threads,
        "draft_threads": options.draft_threads,
        "gpu_layers": [options.gpu_layers, options.draft_gpu_layers],
        "kv": [options.kv_type_k, options.kv_type_v, *kv_types(options, target)],
        "flash_attention": options.flash_attention,
        "rpc": list(options.rpc),
        "kernels": [model.kernels.identity for model in models if isinstance(model, Model)],
    }
