from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from localspec.errors import UsageError
from localspec.gguf.adapters import require_fitting
from localspec.gguf.projectors import require_projector
from localspec.llama.options import ModelOptions

if TYPE_CHECKING:
    from localspec.llama.context import Context
    from localspec.llama.model import Model
    from localspec.llama.projector import Projector
    from localspec.llama.shared_context import SharedContext


def open_target(
    path: Path,
    options: ModelOptions,
    progress: Callable[[float], None] | None,
    *,
    mtp: bool = False,
) -> Model:
    """The target, here (if wanted with its MTP layers) or on RPC servers."""
    from localspec.llama.model import Model

    require_fitting(options.adapters, path)
    if not options.rpc:
        return Model(path, options, progress=progress, adapters=options.adapters, mtp=mtp)
    from localspec.llama import library
    from localspec.pairing.remote_room import require_remote_room
    from localspec.remote.model import RemoteModel

    library.require_rpc()
    room = partial(require_remote_room, path, options)
    return RemoteModel(
        path, options, progress=progress, require_room=room, adapters=options.adapters
    )


def open_projector(model: Model, options: ModelOptions) -> Projector | None:
    """The target's projector, None unless asked for. A UsageError if the target is on RPC servers,
    or has a recurrent memory."""
    if options.mmproj is None:
        return None
    path = Path(options.mmproj).expanduser()
    if options.rpc or model.recurrent:
        why = "is on RPC servers" if options.rpc else "has a recurrent memory"
        raise UsageError(
            f"{model.path.name} {why}, and localspec shows such a model no images. Leave out "
            "--mmproj."
        )
    require_projector(path)
    from localspec.llama.projector import Projector

    return Projector(path, model, options)


def open_cache(model: Model, options: ModelOptions, *, cells: int = 1) -> Context | SharedContext:
    """A cache for one answer or several, with `cells` times the context."""
    from localspec.llama.shared_context import SharedContext

    if options.parallel > 1:
        return SharedContext(model, options, cells=cells)
    return open_context(model, options)


def open_context(model: Model, options: ModelOptions) -> Context:
    from localspec.llama.context import Context

    if not options.rpc:
        return Context(model, options)
    from localspec.remote.context import RemoteContext
    from localspec.remote.model import RemoteModel

    assert isinstance(model, RemoteModel)
    return RemoteContext(model, replace(options, rpc=()))
