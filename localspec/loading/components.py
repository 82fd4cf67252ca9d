"""Opening targets, draft models and their caches, here or on RPC servers. Loads llama.cpp."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from localspec.drafters.draft_model import DraftModel
from localspec.drafters.medusa import MedusaWeights
from localspec.drafters.trained_head import TrainedHead
from localspec.drafters.vocabulary_map import VocabularyMap, match
from localspec.errors import DraftMismatch, UsageError
from localspec.gguf.adapters import require_fitting
from localspec.gguf.heads import head_kind
from localspec.gguf.projectors import require_projector
from localspec.gguf.vocabularies import difference, require_shared
from localspec.hub.cache import require_usable
from localspec.identity import machine
from localspec.llama import devices, library
from localspec.llama.context import Context
from localspec.llama.model import Model
from localspec.llama.native_context import SharedContext, kv_types
from localspec.llama.options import ModelOptions, identity_with_adapters
from localspec.llama.projector import Projector
from localspec.loading.heads import open_head
from localspec.paths import expanded

Cache = Context | SharedContext
"""A cache for one answer, or for several."""
Report = Callable[[float], None] | None

_LEAST = 512
"""Least tokens of a draft model for each of several answers: its window, and a tree."""


@dataclass(frozen=True, slots=True)
class Drafts:
    """A draft model's cache, with a map of its vocabulary if that differs; or a trained head per
    slot."""

    cache: Cache | None = None
    vocabulary_map: VocabularyMap | None = None
    heads: Sequence[TrainedHead] = ()

    @property
    def model(self) -> Any:
        cache: Any = self.heads[0].cache if self.heads else self.cache
        return None if cache is None else cache.model


def open_target(path: Path, options: ModelOptions, progress: Report, *, mtp: bool = False) -> Model:
    """Open the target here, `mtp`: with its MTP layers; or on RPC servers."""
    require_fitting(options.adapters, path)
    if not options.rpc:
        return Model(path, options, progress=progress, adapters=options.adapters, mtp=mtp)
    from localspec.pairing.memory import require_remote_room
    from localspec.remote.target import RemoteModel

    library.require_rpc()
    room = partial(require_remote_room, path, options)
    return RemoteModel(
        path, options, progress=progress, require_room=room, adapters=options.adapters
    )


def open_projector(model: Model, options: ModelOptions) -> Projector | None:
    """Open the target's projector, if requested. Raises UsageError if the target is on RPC servers,
    or has a recurrent memory."""
    if options.mmproj is None:
        return None
    path = expanded(options.mmproj)
    if options.rpc or model.recurrent:
        why = "is on RPC servers" if options.rpc else "has a recurrent memory"
        raise UsageError(
            f"{model.path.name} {why}, so localspec cannot show it images. Leave out --mmproj."
        )
    require_projector(path)
    return Projector(path, model, options)


def open_cache(model: Model, options: ModelOptions, *, each: bool = False) -> Cache:
    """Open a cache for one answer or several, with a context for all together, or for `each`."""
    if options.parallel > 1:
        return SharedContext(model, options, each=each)
    return open_context(model, options)


def open_context(model: Model, options: ModelOptions) -> Context:
    if not options.rpc:
        return Context(model, options)
    from localspec.remote.target import RemoteContext, RemoteModel

    assert isinstance(model, RemoteModel)
    return RemoteContext(model, replace(options, rpc=()))


def open_draft(
    path: Path, target: Cache, options: ModelOptions, progress: Report, opened: ExitStack
) -> Drafts:
    """Open a draft model or a trained head, which `opened` closes; `target` is empty."""
    kind = head_kind(path)
    require_usable(path, head=kind is not None)
    if kind is None:
        return _open_draft_model(path, target, options, progress, opened)
    if options.mmproj is not None:
        raise DraftMismatch(
            f"{path.name} is a trained head, which drafts only for text. Leave out --mmproj, or "
            "choose another draft."
        )
    return Drafts(heads=open_head(kind, path, target, options, progress, opened))


def _open_draft_model(
    path: Path, target: Cache, options: ModelOptions, progress: Report, opened: ExitStack
) -> Drafts:
    options = options.for_draft(target.capacity)
    require_fitting(options.adapters, path)
    model = Model(path, options, progress=progress, adapters=options.adapters)
    opened.enter_context(model)
    if options.parallel > 1 and model.recurrent:
        raise DraftMismatch(
            f"{path.name} has a recurrent memory, which cannot draft for several answers at "
            "once. Leave out --parallel (parallel=1), or choose another draft model."
        )
    vocabulary_map, mine = None, target.model
    if options.cross_vocabulary == "off":
        require_shared(mine.path, path)
    elif difference(mine.path, path) is not None:
        vocabulary_map = match(mine.vocabulary, model.vocabulary)
        room = min(model.trained_context, vocabulary_map.room(target.capacity))
        options = replace(options, context=max(room, target.capacity))
    # Concurrent answers are shorter, and a draft model needs only the latest part of a text.
    most = max(_LEAST, -(-3 * options.context // options.parallel))
    if vocabulary_map is None:
        most = min(most, DraftModel.ROOM)
    options = replace(options, context=min(options.context, most))
    cache = opened.enter_context(closing(open_cache(model, options, each=True)))
    (cache.shared if isinstance(cache, Context) else cache).choose_outputs()
    return Drafts(cache, vocabulary_map)


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
