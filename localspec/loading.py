"""Opening a pair: from references to an engine."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from localspec import paths
from localspec.drafters.options import Drafting
from localspec.engine import Engine
from localspec.errors import DraftMismatch, LocalspecError, ModelInvalid, ModelNotFound, NativeError
from localspec.hub import resolution
from localspec.identity import file_identity, machine
from localspec.llama.options import ModelOptions
from localspec.planning.profile_store import ProfileStore

if TYPE_CHECKING:
    from pathlib import Path

    from localspec.drafters.vocabulary_map import VocabularyMap
    from localspec.llama.context import Context
    from localspec.llama.model import Model
    from localspec.pairing.choice import Choice

logger = logging.getLogger("localspec.loading")

Reference = str | os.PathLike[str]
"""A model as people name it: a path, `user/repo:quant`, a name in the catalogue, "demo" for the
embedded pair (see `localspec.hub.reference`)."""


def load(
    model: Reference | None = None,
    *,
    draft: Reference | None = "auto",
    options: ModelOptions | None = None,
    drafting: Drafting | None = None,
    wait: bool = True,
    progress: Callable[[float], None] | None = None,
    offline: bool | None = None,
) -> Engine:
    """Open a model, and a draft model with it.

    Args:
        model: what to open; None is the embedded model.
        draft: a reference, None or "none" for no draft model, "auto" for the one among the local
            files that promises most, if any does (see `localspec.pairing.auto`). The n-gram drafter
            needs none.
        options: where and how the models run.
        drafting: how to draft, unless a call says otherwise.
        wait: what a call does while another one generates: wait for it, or raise EngineBusy.
        progress: called with the loaded fraction of both files; an exception it raises stops the
            loading and comes out here.
        offline: whether advice to download would be of no use; None asks HF_HUB_OFFLINE. Nothing
            is ever downloaded here: a model that is not in the cache is not found.

    Raises:
        ModelNotFound, UsageError, ModelInvalid, DraftMismatch, NativeError: see `localspec.errors`.
    """
    from localspec.llama.context import Context
    from localspec.llama.model import Model

    options = options or ModelOptions()
    found = [resolution.find(model, offline=offline)]
    path = found[0].path
    why_no_draft: str | None = None
    why_draft: str | None = None
    automatic = draft == "auto"
    if automatic:
        choice = choose_draft(path, options)
        draft = choice.draft
        if draft is None:
            why_no_draft = choice.why
        else:
            why_draft = choice.why or None
    elif draft in (None, "none"):
        draft, why_no_draft = None, "none was asked for"
    if draft is not None:
        found.append(resolution.find(draft, offline=offline, embedded=paths.EMBEDDED_DRAFT))

    reports = _shares(progress, [one.path for one in found])
    with ExitStack() as opened:
        _require_undamaged(path)
        target_model = opened.enter_context(Model(path, options, progress=reports[0]))
        target = opened.enter_context(closing(Context(target_model, options)))
        draft_context = draft_path = vocabulary_map = None
        if draft is not None:
            draft_path = found[1].path
            try:
                draft_context, vocabulary_map = _open_draft(draft_path, target, options, reports[1])
                opened.callback(draft_context.model.close)
                opened.callback(draft_context.close)
            except _NO_DRAFT as error:
                # Where nobody asked for this draft model, the target alone is as good.
                if not automatic:
                    raise
                why = str(error).rstrip(".")
                why_no_draft = f"the n-gram drafts alone: {draft_path.name} fails: {why}"
                why_draft = draft_path = None
        engine = Engine(
            target,
            draft_context,
            draft_path=draft_path,
            vocabulary_map=vocabulary_map,
            cross_vocabulary=options.cross_vocabulary,
            store=ProfileStore(
                _identity([target, draft_context], options)
                | ({} if vocabulary_map is None else {"vocabulary": options.cross_vocabulary})
            ),
            side_by_side=draft_context is not None and _side_by_side(options),
            drafting=drafting or Drafting(),
            wait=wait,
            why_no_draft=why_no_draft,
            why_draft=why_draft,
            notices=tuple(notice for one in found for notice in one.notices),
        )
        opened.pop_all()
    return engine


_NO_DRAFT = (DraftMismatch, ModelInvalid, ModelNotFound, NativeError)


def _open_draft(
    path: Path, target: Context, options: ModelOptions, progress: Callable[[float], None] | None
) -> tuple[Context, VocabularyMap | None]:
    """The draft model's context, and what translates where its tokens are not the target's."""
    from localspec.drafters.vocabulary_match import match
    from localspec.llama.context import Context
    from localspec.llama.token_bytes import token_bytes

    _require_undamaged(path)
    options = options.for_draft(target.capacity)
    model = _draft_model(path, target.model, options, progress)
    try:
        vocabulary_map = None
        vocabulary = target.model.vocabulary
        if vocabulary.difference(model.vocabulary) is not None:
            vocabulary_map = match(token_bytes(vocabulary), token_bytes(model.vocabulary))
            room = min(model.trained_context, vocabulary_map.room(target.capacity))
            options = replace(options, context=max(room, target.capacity))
        return Context(model, options), vocabulary_map
    except BaseException:
        model.close()
        raise


def _require_undamaged(path: Path) -> None:
    """Return unless opening the file is known to take the process down.

    Raises:
        ModelInvalid: it is.
    """
    from localspec.gguf.description import damage
    from localspec.gguf.reader import read_gguf

    try:
        found = damage(read_gguf(path))
    except LocalspecError:
        return  # llama.cpp has the last word about what it can read
    if found is not None:
        raise ModelInvalid(
            f"{path.name} cannot be used: {found[:1].lower()}{found[1:]} Download it again, or "
            "choose another model."
        )


def _draft_model(
    path: Path, target: Model, options: ModelOptions, progress: Callable[[float], None] | None
) -> Model:
    """The draft model, or a requantized copy of it where that is faster."""
    from localspec.llama import requantized_draft
    from localspec.llama.model import Model

    copy = requantized_draft.known_copy(path, options)
    with ExitStack() as opened:
        model = None if copy is None else _open_copy(copy, options, progress)
        if model is None:
            model = Model(path, options, progress=progress)
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
        _require_undamaged(copy)
        return Model(copy, options, progress=progress)
    except (ModelInvalid, ModelNotFound) as error:
        requantized_draft.discard(copy, error)
    except NativeError as error:  # the memory, not the file
        logger.warning("the copy of the draft model is not used: %s", error)
    return None


def _shares(
    progress: Callable[[float], None] | None, files: Sequence[Path]
) -> list[Callable[[float], None] | None]:
    """What each file reports its progress to, as a part of the whole by its size."""
    if progress is None:
        return [None] * len(files)
    sizes = [max(1, path.stat().st_size) if path.exists() else 1 for path in files]

    def share(number: int) -> Callable[[float], None]:
        before, own = sum(sizes[:number]), sizes[number]
        return lambda fraction: progress((before + fraction * own) / sum(sizes))

    return [share(number) for number in range(len(files))]


def choose_draft(target: Path, options: ModelOptions) -> Choice:
    """What -d auto means for a target."""
    from localspec.pairing.choice import Choice

    # Looking around takes a while, and the embedded target has its own draft.
    if target.resolve() == paths.embedded(paths.EMBEDDED_TARGET).resolve():
        return Choice(paths.embedded(paths.EMBEDDED_DRAFT), "")
    from localspec.llama import library
    from localspec.pairing.auto import choose

    return choose(target, options, accelerated=options.gpu_layers != 0 and library.accelerated())


def _identity(contexts: Sequence[Context | None], options: ModelOptions) -> dict[str, Any]:
    """Everything that the cost of a pass depends on."""
    from localspec.llama import library

    return {
        "machine": machine() | {"devices": library.devices()},
        "library": library.version(),
        "models": [file_identity(c.model.path) for c in contexts if c is not None],
        "threads": [options.threads or library.default_threads(), options.draft_threads],
        "gpu_layers": [options.gpu_layers, options.draft_gpu_layers],
        "kv": [options.kv_type_k, options.kv_type_v],
        "flash_attention": options.flash_attention,
        "rpc": list(options.rpc),
    }


def _side_by_side(options: ModelOptions) -> bool:
    """Whether target and draft model have devices, or cores, of their own."""
    from localspec.llama import library

    if options.draft_gpu_layers not in (None, options.gpu_layers):
        return library.accelerated()
    threads = options.threads or library.default_threads()
    if options.draft_threads is None:
        return False
    return threads + options.draft_threads <= library.default_threads()
