"""Choosing and opening the draft model."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from localspec import paths
from localspec.errors import DraftMismatch, ModelInvalid, ModelNotFound, NativeError
from localspec.gguf.adapters import require_fitting
from localspec.gguf.description import require_undamaged
from localspec.gguf.mtp import has_mtp
from localspec.hub import resolution
from localspec.llama.options import AUTO, ModelOptions
from localspec.loading.places import open_cache

if TYPE_CHECKING:
    from localspec.drafters.vocabulary_map import VocabularyMap
    from localspec.llama.context import Context
    from localspec.llama.model import Model
    from localspec.llama.shared_context import SharedContext
    from localspec.pairing.choice import Choice

logger = logging.getLogger("localspec.loading")


def choose_draft(target: Path, options: ModelOptions) -> Choice:
    """What -d auto means for a target."""
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
    """Whether what was said about drafts means MTP layers that the target's own file has."""
    if reference is None or options.rpc or options.draft_adapters or options.mmproj is not None:
        return False
    from localspec.self_draft.recipe import SELF

    meant = reference in (AUTO, SELF) or Path(reference).resolve() == target.resolve()
    return meant and has_mtp(target)


class NamedDraft(NamedTuple):
    """A draft model that was asked for.

    Attributes:
        path: None where nothing that could be made of the target's own file pays.
        notices: what the user should know about it, sentences.
    """

    path: Path | None
    notices: tuple[str, ...]


def find_draft(
    reference: str | os.PathLike[str],
    target: Path,
    options: ModelOptions,
    *,
    offline: bool | None = None,
    progress: Callable[[float], None] | None = None,
) -> NamedDraft:
    """What any other -d means for a target: a file, or what is made of the target's own.

    Args:
        progress: as for `localspec.loading.load.load`.

    Raises:
        ModelNotFound, UsageError: as `localspec.hub.resolution.find`.
        LocalspecError: as `localspec.self_draft.making.self_draft`.
    """
    from localspec.self_draft.recipe import Wish

    wish = Wish.parse(reference)
    if wish is None:
        found = resolution.find(reference, offline=offline, embedded=paths.EMBEDDED_DRAFT)
        return NamedDraft(found.path, found.notices)
    from localspec.self_draft.making import self_draft

    require_undamaged(target)
    made = self_draft(target, wish, options, lambda: progress is None or progress(0.0))
    return NamedDraft(made.path, (made.words,))


def open_draft(
    path: Path,
    target: Context | SharedContext,
    options: ModelOptions,
    progress: Callable[[float], None] | None,
) -> tuple[Context | SharedContext, VocabularyMap | None]:
    """The draft model's context, and what translates where its tokens are not the target's."""
    from localspec.drafters.vocabulary_match import match
    from localspec.llama.token_bytes import token_bytes

    require_undamaged(path)
    options = options.for_draft(target.capacity)
    model = _draft_model(path, target.model, options, progress)
    try:
        if options.parallel > 1 and model.recurrent:
            raise DraftMismatch(
                f"{path.name} has a recurrent memory, which cannot draft for several answers at "
                "once. Open the pair with parallel=1, or choose another draft model."
            )
        vocabulary_map = None
        vocabulary = target.model.vocabulary
        if vocabulary.difference(model.vocabulary) is not None:
            vocabulary_map = match(token_bytes(vocabulary), token_bytes(model.vocabulary))
            room = min(model.trained_context, vocabulary_map.room(target.capacity))
            options = replace(options, context=max(room, target.capacity))
        # A text that lost its place in the target's cache may keep that in the draft's for a while.
        return open_cache(model, options, cells=3), vocabulary_map
    except BaseException:
        model.close()
        raise


def _draft_model(
    path: Path, target: Model, options: ModelOptions, progress: Callable[[float], None] | None
) -> Model:
    """The draft model, or a requantized copy of it where that is faster."""
    from localspec.llama import requantized_draft
    from localspec.llama.model import Model

    copy = requantized_draft.known_copy(path, options)
    require_fitting(options.adapters, path)  # a copy has the same matrices
    with ExitStack() as opened:
        model = None if copy is None else _open_copy(copy, options, progress)
        if model is None:
            model = Model(path, options, progress=progress, adapters=options.adapters)
        opened.callback(model.close)
        if options.cross_vocabulary == "off":
            target.vocabulary.require_shared_with(model.vocabulary)
        if copy is None:
            copy = requantized_draft.faster_copy(model, options)
            faster = None if copy is None else _open_copy(copy, options, None)
            if faster is not None:
                model.close()
                model = faster
        opened.pop_all()
    return model


def _open_copy(
    copy: Path, options: ModelOptions, progress: Callable[[float], None] | None
) -> Model | None:
    """A requantized copy; None where it cannot be opened, as the original may."""
    from localspec.llama import requantized_draft
    from localspec.llama.model import Model

    try:
        require_undamaged(copy)
        return Model(copy, options, progress=progress, adapters=options.adapters)
    except (ModelInvalid, ModelNotFound) as error:
        requantized_draft.discard(copy, error)
    except NativeError as error:  # the memory, not the file
        logger.warning("the copy of the draft model is not used: %s", error)
    return None
