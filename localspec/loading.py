"""Opening a pair: from references to an engine."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

from localspec import paths
from localspec.drafters.options import Drafting
from localspec.engine import Engine
from localspec.errors import (
    DraftMismatch,
    LocalspecError,
    ModelInvalid,
    ModelNotFound,
    NativeError,
)
from localspec.hub import resolution
from localspec.identity import file_identity, machine
from localspec.keywords import LoadKeywords, with_keywords
from localspec.llama.options import ModelOptions
from localspec.planning.other_processes import OtherProcesses
from localspec.planning.profile_store import ProfileStore
from localspec.planning.thread_use import DRAFT, TARGET
from localspec.planning.threads import ThreadController
from localspec.text import gibibytes

if TYPE_CHECKING:
    from pathlib import Path

    from typing_extensions import Unpack  # of Python itself from 3.11 on

    from localspec.drafters.vocabulary_map import VocabularyMap
    from localspec.llama.context import Context
    from localspec.llama.model import Model
    from localspec.llama.shared_context import SharedContext
    from localspec.pairing.choice import Choice

logger = logging.getLogger("localspec.loading")

Reference = str | os.PathLike[str]
"""A model as people name it: a path, `user/repo:quant`, a name in the catalogue, "demo" for the
embedded pair (see `localspec.hub.reference`)."""

OWN = ("model", "draft", "options", "drafting", "wait", "progress", "offline")
"""What `load` takes besides the fields of the options objects."""


def load(
    model: Reference | None = None,
    *,
    draft: Reference | None = "auto",
    options: ModelOptions | None = None,
    drafting: Drafting | None = None,
    wait: bool = True,
    progress: Callable[[float], None] | None = None,
    offline: bool | None = None,
    **keywords: Unpack[LoadKeywords],
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
        keywords: any field of ModelOptions and of Drafting by its name (`context=4096`,
            `threads=8`, `drafter="model"`); it wins over that of `options` and `drafting`.

    Raises:
        TypeError: a keyword that there is not; the message names the nearest.
        ModelNotFound, UsageError, ModelInvalid, DraftMismatch, NativeError: see `localspec.errors`.
    """
    from localspec.llama.shared_context import SharedContext
    from localspec.parallel_engine import ParallelEngine, seats_over

    options, drafting = with_keywords(options, drafting, keywords, OWN)
    others = OtherProcesses()  # watches the machine from now on
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
        target_model = opened.enter_context(_target_model(path, options, reports[0]))
        notices = [notice for one in found for notice in one.notices]
        if options.parallel > 1 and target_model.recurrent:
            options = replace(options, parallel=1)
            notices.append(
                f"{path.name} answers one at a time: its memory is recurrent, and cannot hold "
                "several texts that are drafted for."
            )
        if options.parallel > 1 and options.rpc:
            options = replace(options, parallel=1)
            notices.append(f"{path.name} answers one at a time: its layers are on RPC servers.")
        if options.parallel > 1 and options.prompt_cache:
            options = replace(options, prompt_cache=0)
            notices.append(
                "What is read of conversations is not kept on disk while several are answered at "
                "once."
            )
        target = opened.enter_context(closing(_cache(target_model, options)))
        draft_context = draft_path = vocabulary_map = seats = None
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
        models = [target_model, None if draft_context is None else draft_context.model]
        caches: tuple[Context, Context | None]
        if isinstance(target, SharedContext):
            assert draft_context is None or isinstance(draft_context, SharedContext)
            seats = seats_over(target, draft_context, vocabulary_map, options)
            caches = seats.all[0].cache, seats.all[0].draft_cache
        else:
            assert not isinstance(draft_context, SharedContext)
            caches = target, draft_context
        controller, fixed_threads = _threads(options, target_model, others)
        engine = (Engine if seats is None else ParallelEngine)(
            *caches,
            draft_path=draft_path,
            vocabulary_map=vocabulary_map,
            cross_vocabulary=options.cross_vocabulary,
            store=ProfileStore(
                _identity(models, options)
                | ({} if vocabulary_map is None else {"vocabulary": options.cross_vocabulary})
            ),
            threads=controller,
            fixed_threads=fixed_threads,
            side_by_side=seats is None and draft_context is not None and _side_by_side(options),
            drafting=drafting,
            wait=wait,
            why_no_draft=why_no_draft,
            why_draft=why_draft,
            notices=tuple(notices),
            prompt_cache=options.prompt_cache,
        )
        if isinstance(engine, ParallelEngine) and seats is not None:
            engine.serve(seats)
        opened.pop_all()
    return engine


def load_beside(engine: Engine, options: ModelOptions) -> Engine:
    """A second engine on the weights of an open one, with a KV cache of its own and no draft model,
    for plain decoding beside it. Close it before that one.

    Args:
        engine: an open engine.
        options: those that it was opened with.

    Raises:
        NativeError: there is no memory for another cache.
    """
    if not options.rpc:  # a server's memory is asked for when the cache is made
        _require_room(engine, options)
    controller, fixed_threads = _threads(options, engine.model, OtherProcesses())
    with ExitStack() as opened:
        context = opened.enter_context(closing(_context(engine.model, options)))
        beside = Engine(
            context,
            None,
            draft_path=None,
            vocabulary_map=None,
            cross_vocabulary=options.cross_vocabulary,
            store=ProfileStore(_identity([context.model], options)),
            threads=controller,
            fixed_threads=fixed_threads,
            side_by_side=False,
            drafting=Drafting(drafter="none"),
            wait=True,
            why_no_draft="it decodes plainly",
            owns_models=False,
        )
        opened.pop_all()
    return beside


def _require_room(engine: Engine, options: ModelOptions) -> None:
    """Return unless main memory is too short for another cache: the system would end the process,
    as memory is promised before it is there."""
    from localspec.gguf.reader import read_gguf
    from localspec.llama import library
    from localspec.pairing.memory import predict
    from localspec.pairing.pair_memory import available

    if options.gpu_layers != 0 and library.accelerated():
        return  # llama.cpp refuses by itself what a device cannot hold
    try:
        file = read_gguf(engine.model.path)
    except LocalspecError:
        return  # the reader knows less than llama.cpp, which has opened it
    need = predict(
        file,
        context=engine.context_length,
        kv_type_k=options.kv_type_k,
        kv_type_v=options.kv_type_v,
        batch=options.batch,
        flash_attention=options.flash_attention != "off",
    )
    wanted, free = need.kv + need.compute, available()[0]
    if wanted > free:
        raise NativeError(
            f"A second cache of {engine.context_length} tokens takes {gibibytes(wanted)}, and "
            f"{gibibytes(free)} of memory are free. Ask for a shorter context with --ctx, or a "
            "smaller --kv-type."
        )


_NO_DRAFT = (DraftMismatch, ModelInvalid, ModelNotFound, NativeError)


def _cache(model: Model, options: ModelOptions, *, cells: int = 1) -> Context | SharedContext:
    """A cache for one answer, or for several; `cells`: as many times the context."""
    from localspec.llama.shared_context import SharedContext

    if options.parallel > 1:
        return SharedContext(model, options, cells=cells)
    return _context(model, options)


def _context(model: Model, options: ModelOptions) -> Context:
    """A cache for one answer at a time, where the model is."""
    from localspec.llama.context import Context

    if not options.rpc:
        return Context(model, options)
    from localspec.remote.context import RemoteContext
    from localspec.remote.model import RemoteModel

    assert isinstance(model, RemoteModel)
    return RemoteContext(model, replace(options, rpc=()))


def _target_model(
    path: Path, options: ModelOptions, progress: Callable[[float], None] | None
) -> Model:
    """The target, here or on RPC servers."""
    from localspec.llama.model import Model

    if not options.rpc:
        return Model(path, options, progress=progress)
    from localspec.llama import library
    from localspec.pairing.remote_room import require_remote_room
    from localspec.remote.model import RemoteModel

    library.require_rpc()

    room = partial(require_remote_room, path, options)
    return RemoteModel(path, options, progress=progress, require_room=room)


def _open_draft(
    path: Path,
    target: Context | SharedContext,
    options: ModelOptions,
    progress: Callable[[float], None] | None,
) -> tuple[Context | SharedContext, VocabularyMap | None]:
    """The draft model's context, and what translates where its tokens are not the target's."""
    from localspec.drafters.vocabulary_match import match
    from localspec.llama.token_bytes import token_bytes

    _require_undamaged(path)
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
        return _cache(model, options, cells=3), vocabulary_map
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
    from localspec.llama import devices, library
    from localspec.pairing.auto import choose

    return choose(
        target,
        options,
        accelerated=options.gpu_layers != 0 and library.accelerated(),
        device_free=devices.free_memory() if options.gpu_layers < 0 else 0,
    )


def _identity(models: Sequence[Model | None], options: ModelOptions) -> dict[str, Any]:
    """Everything that the cost of a pass depends on."""
    from localspec.llama import library

    return {
        "machine": machine() | {"devices": library.devices()},
        "library": library.version(),
        "models": [file_identity(model.path) for model in models if model is not None],
        "draft_threads": options.draft_threads,
        "gpu_layers": [options.gpu_layers, options.draft_gpu_layers],
        "kv": [options.kv_type_k, options.kv_type_v],
        "flash_attention": options.flash_attention,
        "rpc": list(options.rpc),
    }


def _threads(
    options: ModelOptions, target: Model, others: Callable[[], float | None]
) -> tuple[ThreadController, dict[str, int]]:
    """Who decides how many threads passes run on, and whose are given.

    Args:
        others: cores that other processes use at present.
    """
    from localspec.llama import library
    from localspec.llama.thread_counts import thread_counts

    cores = library.default_threads()
    asked, reason = options.fixed_threads, "as asked for"
    if asked is None and target.on_device:
        # Trials would teach nothing: no count makes its passes faster.
        asked, reason = cores, "as a device computes the model's layers"
    fixed = {} if asked is None else {TARGET: asked, DRAFT: asked}
    if options.draft_threads is not None:
        fixed[DRAFT] = options.draft_threads
    counts = thread_counts() if asked is None else [asked]
    if asked is None:
        reason = "nothing disturbs them" if len(counts) > 1 else "the only core"
    if asked is None and options.rpc:
        # What its passes take says nothing about the processor of this machine.
        counts, reason = [cores], "the passes run on other machines"
    controller = ThreadController(
        counts,
        cores=cores,
        others=others,
        clock=perf_counter,
        whole_prompts=library.accelerated(),
        reason=reason,
    )
    return controller, fixed


def _side_by_side(options: ModelOptions) -> bool:
    """Whether target and draft model have devices, or cores, of their own."""
    from localspec.llama import library

    if options.rpc:
        return True  # its passes keep other machines busy
    if options.draft_gpu_layers not in (None, options.gpu_layers):
        return library.accelerated()
    if options.draft_threads is None or options.fixed_threads is None:
        return False  # "auto" gives the target all cores that are free
    return options.fixed_threads + options.draft_threads <= library.default_threads()
