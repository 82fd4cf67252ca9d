from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from localspec import paths
from localspec.errors import DraftMismatch
from localspec.gguf.adapters import require_fitting
from localspec.gguf.description import require_undamaged
from localspec.gguf.mtp import has_mtp
from localspec.hub import resolution
from localspec.llama.options import AUTO, ModelOptions
from localspec.loading.places import open_cache

if TYPE_CHECKING:
    from localspec.drafters.vocabulary_map import VocabularyMap
    from localspec.llama.context import Context
    from localspec.llama.shared_context import SharedContext
    from localspec.pairing.choice import Choice


def choose_draft(target: Path, options: ModelOptions) -> Choice:
    """What `-d auto` means for a target."""
    from localspec.pairing.choice import Choice

    # Looking around takes a while, and the embedded target has its own draft, or one that was
    # trained here.
    if target.resolve() == paths.embedded(paths.EMBEDDED_TARGET).resolve():
        from localspec.pairing.trained import best_for

        return Choice(best_for(target) or paths.embedded(paths.EMBEDDED_DRAFT), "")
    from localspec.llama import devices, library
    from localspec.pairing.auto import choose

    return choose(
        target,
        options,
        accelerated=options.gpu_layers != 0 and library.accelerated(),
        device_free=devices.free_memory() if options.gpu_layers < 0 else 0,
    )


def takes_own_mtp(
    target: Path, reference: str | os.PathLike[str] | None, options: ModelOptions
) -> bool:
    """Whether the reference means MTP layers in the target's own file."""
    if reference is None or options.rpc or options.draft_adapters or options.mmproj is not None:
        return False
    from localspec.self_draft.recipe import SELF

    meant = reference in (AUTO, SELF) or Path(reference).resolve() == target.resolve()
    return meant and has_mtp(target)


class NamedDraft(NamedTuple):
    """A draft model that was asked for; no `path` if no draft made from the target's own file
    pays."""

    path: Path | None
    name: str
    notices: tuple[str, ...]


def find_draft(
    reference: str | os.PathLike[str],
    target: Path,
    options: ModelOptions,
    *,
    offline: bool | None = None,
    progress: Callable[[float], None] | None = None,
) -> NamedDraft:
    """What any other `-d` means: a file, or a draft made from the target's own. Raises as
    `localspec.hub.resolution.find` and `localspec.self_draft.making.self_draft`."""
    from localspec.self_draft.recipe import Wish

    wish = Wish.parse(reference)
    if wish is None:
        found = resolution.find(reference, offline=offline, embedded=paths.EMBEDDED_DRAFT)
        return NamedDraft(found.path, resolution.name_of(reference, found.path), found.notices)
    from localspec.self_draft.making import self_draft

    require_undamaged(target)
    made = self_draft(target, wish, options, lambda: progress is None or progress(0.0))
    return NamedDraft(made.path, "" if made.path is None else made.path.stem, (made.words,))


class OpenDraft(NamedTuple):
    """A draft model's cache, and the map of its vocabulary if that differs."""

    cache: Context | SharedContext
    vocabulary_map: VocabularyMap | None


def open_draft(
    path: Path,
    target: Context | SharedContext,
    options: ModelOptions,
    progress: Callable[[float], None] | None,
) -> OpenDraft:
    """Open a draft model; `target` is empty, `options` are those of the pair."""
    from localspec.drafters.vocabulary_match import match
    from localspec.llama.model import Model
    from localspec.llama.token_bytes import token_bytes

    require_undamaged(path)
    options = options.for_draft(target.capacity)
    require_fitting(options.adapters, path)
    model = Model(path, options, progress=progress, adapters=options.adapters)
    try:
        if options.parallel > 1 and model.recurrent:
            raise DraftMismatch(
                f"{path.name} has a recurrent memory, which cannot draft for several answers at "
                "once. Open the pair with parallel=1, or choose another draft model."
            )
        vocabulary_map = None
        vocabulary = target.model.vocabulary
        if options.cross_vocabulary == "off":
            vocabulary.require_shared_with(model.vocabulary)
        if vocabulary.difference(model.vocabulary) is not None:
            vocabulary_map = match(token_bytes(vocabulary), token_bytes(model.vocabulary))
            room = min(model.trained_context, vocabulary_map.room(target.capacity))
            options = replace(options, context=max(room, target.capacity))
        # A text that lost its place in the target's cache may keep that in the draft's for a while.
        cache = open_cache(model, options, cells=3)
        return OpenDraft(cache, vocabulary_map)
    except BaseException:
        model.close()
        raise
