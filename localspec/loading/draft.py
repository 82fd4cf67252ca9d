"""Choosing and opening the draft model."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
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


class OpenDraft(NamedTuple):
    """A draft model that is open.

    Attributes:
        cache: its context.
        vocabulary_map: what translates where its tokens are not the target's.
        notices: what the user should know about it, sentences.
    """

    cache: Context | SharedContext
    vocabulary_map: VocabularyMap | None
    notices: tuple[str, ...]


def open_draft(
    path: Path,
    target: Context | SharedContext,
    options: ModelOptions,
    progress: Callable[[float], None] | None,
    others: Callable[[], float | None],
) -> OpenDraft:
    """Open a draft model.

    Args:
        target: empty, and left empty.
        options: those of the pair.
        others: cores that other processes use at present.
    """
    from localspec.drafters.vocabulary_match import match
    from localspec.llama.token_bytes import token_bytes

    require_undamaged(path)
    model, notice = _draft_model(path, target, options, progress, others)
    options = options.for_draft(target.capacity)
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
        cache = open_cache(model, options, cells=3)
        return OpenDraft(cache, vocabulary_map, (notice,) if notice else ())
    except BaseException:
        model.close()
        raise


def _draft_model(
    path: Path,
    target: Context | SharedContext,
    options: ModelOptions,
    progress: Callable[[float], None] | None,
    others: Callable[[], float | None],
) -> tuple[Model, str]:
    """The draft model, or a requantized copy of it where that promises more, and what to tell the
    user of that."""
    from localspec.llama import requantized_draft
    from localspec.llama.model import Model
    from localspec.loading import copy_choice

    own = options.for_draft(target.capacity)
    require_fitting(own.adapters, path)  # a copy has the same matrices
    pair = copy_choice.pair_of(target.model, options)
    known = requantized_draft.known_verdict(path, pair, own)
    if known is not None and known.copy is not None:
        model = _open_copy(known.copy.path, own, progress)
        if model is not None:
            return model, copy_choice.words(known)
    with ExitStack() as opened:
        model = Model(path, own, progress=progress, adapters=own.adapters)
        opened.callback(model.close)
        vocabulary = target.model.vocabulary
        if own.cross_vocabulary == "off":
            vocabulary.require_shared_with(model.vocabulary)
        notice = ""
        if known is None and vocabulary.difference(model.vocabulary) is None:
            calm = partial(copy_choice.calm, others)
            copy = requantized_draft.faster_copy(model, own, calm)
            requantized = None if copy is None else _open_copy(copy.path, own, None)
            if copy is not None and requantized is not None:
                opened.callback(requantized.close)
                verdict = copy_choice.weigh(target, model, requantized, copy, options, calm)
                if verdict is not None and verdict.copy is not None:
                    model, requantized, notice = requantized, model, copy_choice.words(verdict)
                requantized.close()
                if verdict is not None:
                    requantized_draft.keep_verdict(copy.path, pair, verdict)
        opened.pop_all()
    return model, notice


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
