"""`load`: opens an engine from model references."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from typing_extensions import Unpack  # in the standard library since 3.11

from localspec.drafters.draft_model import DraftModel
from localspec.drafters.heterogeneous import HeterogeneousDraftModel
from localspec.drafters.mapped_cache import MappedCache
from localspec.drafters.options import Drafting
from localspec.drafters.trained_head import TrainedHead
from localspec.drafters.vocabulary_map import VocabularyMap, match
from localspec.engine import Engine
from localspec.errors import (
    DraftMismatch,
    ModelInvalid,
    ModelNotFound,
    NativeError,
    UsageError,
)
from localspec.gguf.adapters import require_fitting
from localspec.gguf.heads import head_kind
from localspec.gguf.projectors import require_projector
from localspec.gguf.vocabularies import difference, require_shared
from localspec.hub import resolution
from localspec.hub.cache import require_usable
from localspec.keywords import LoadKeywords, with_keywords
from localspec.llama import library
from localspec.llama.context import Context
from localspec.llama.model import Model
from localspec.llama.options import ModelOptions
from localspec.llama.projector import Projector
from localspec.llama.threads import thread_choice
from localspec.loading.batch_invariance import batch_invariant, max_equal_pass
from localspec.loading.caches import Cache, cost_identity, open_cache
from localspec.loading.draft import ChosenDraft, Reference, draft_for
from localspec.loading.heads import open_head, open_mtp
from localspec.paths import expanded
from localspec.policy.store import ProfileStore
from localspec.scheduling.slots import Slots
from localspec.typed import typed

OWN = ("model", "draft", "options", "drafting", "wait", "progress", "offline")
"""Parameters of `load` besides the fields of the options."""

_ALONE = 2
"""Chunks per pass while only one prompt is prefilled; a new answer waits for such a pass."""

_LEAST = 512
"""Least tokens of a draft model for each of several answers: its window, and a tree."""

_NO_DRAFT = (DraftMismatch, ModelInvalid, ModelNotFound, NativeError)
"""Errors on which an automatically chosen draft model is left out."""

Report = Callable[[float], None] | None


@dataclass(frozen=True, slots=True)
class _Drafts:
    """A draft model's cache, with a map of its vocabulary if that differs; or a trained head per
    slot."""

    cache: Cache | None = None
    vocabulary_map: VocabularyMap | None = None
    heads: Sequence[TrainedHead] = ()


@typed
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
    """Open a model and its draft model.

    Args:
        model: reference of the target; None opens the built-in model.
        draft: a reference; None or "none" for no draft model; "auto" for MTP layers in the model's
            file, else the local draft model with the largest expected gain, if any pays
            (`localspec.pairing.auto`); "self" for MTP layers, else a draft made from the model's
            own file, which takes some minutes the first time (`localspec.self_draft.maker`).
        options: how the models run.
        drafting: how to draft; a call may override it.
        wait: whether a call waits while another one generates, rather than raising EngineBusy.
        progress: called with the loaded fraction of both files; an exception stops the loading.
        offline: whether error messages leave out advice to download; None reads HF_HUB_OFFLINE.
            `load` never downloads.
        keywords: fields of ModelOptions and Drafting by name (`context=4096`, `drafter="ngram"`);
            they win over `options` and `drafting`.

    Raises:
        TypeError: an unknown keyword; the message suggests the nearest.
        ModelNotFound, UsageError, ModelInvalid, DraftMismatch, NativeError, ServerUnreachable: see
            `localspec.errors`.
    """
    options, drafting = with_keywords(options, drafting, keywords, OWN)
    found = resolution.find(model, offline=offline)
    path = found.path
    chosen = draft_for(path, draft, options, offline=offline, progress=progress)
    notices = [*found.notices, *chosen.notices]
    files = [path] if chosen.path is None or chosen.own_mtp else [path, chosen.path]
    reports = _shares(progress, files)
    with ExitStack() as opened:
        target_model = opened.enter_context(_open_target(path, chosen, options, reports[0]))
        target_model.name = resolution.name_of(model, path)
        trained = target_model.trained_context
        if options.context > trained:
            notices.append(
                f"The context has {options.context:,} tokens, but {path.name} was trained with "
                f"{trained:,}. Answers may get worse beyond that."
            )
        identity = cost_identity([target_model], options)
        largest = max_equal_pass(target_model, options, identity) if options.exact else None
        alone = _why_one_at_a_time(target_model, options, largest)
        if alone is not None:
            options = replace(options, parallel=1)
            notices.append(f"{path.name} generates answers one at a time{alone}.")
        target = opened.enter_context(closing(open_cache(target_model, options)))
        projector = None
        if options.mmproj is not None:
            projector = open_projector(target_model, expanded(options.mmproj), options)
            opened.enter_context(closing(projector))
        if largest is not None and isinstance(target, Context):
            target.max_leaves = 1  # trees reorder cells
            target.max_draft = min(target.max_draft, largest - 1)
        drafts = _open_drafts(chosen, target, options, reports[-1], opened)
        slots = _slots(target, drafts, options)
        cache = slots.all[0].parts.native_cache
        costs = cost_identity([target_model, None if cache is None else cache.model], options)
        if drafts.vocabulary_map is not None:
            costs["vocabulary"] = options.cross_vocabulary
        engine = Engine(
            slots,
            draft_path=chosen.path,
            store=ProfileStore(costs),
            threads=thread_choice(options, target_model),
            drafting=drafting,
            wait=wait,
            why_no_draft=chosen.why_none,
            why_draft=chosen.why,
            notices=tuple(notices),
            prompt_cache=options.prompt_cache,
            exact=options.exact,
            batch_invariant=partial(batch_invariant, target_model, options, identity),
            projector=projector,
        )
        opened.pop_all()
    return engine


def _open_target(path: Path, chosen: ChosenDraft, options: ModelOptions, report: Report) -> Model:
    """Open the target, here or on RPC servers; without its MTP layers if these are damaged and were
    not requested."""
    require_usable(path)
    adapters = options.adapters
    require_fitting(adapters, path)
    if options.rpc:
        from localspec.pairing.memory import require_remote_room
        from localspec.remote.target import RemoteModel

        library.require_rpc()
        room = partial(require_remote_room, path, options)
        return RemoteModel(path, options, progress=report, require_room=room, adapters=adapters)
    try:
        return Model(path, options, progress=report, adapters=adapters, mtp=chosen.own_mtp)
    except ModelInvalid:
        if not (chosen.own_mtp and chosen.automatic):
            raise
        model = Model(path, options, progress=report, adapters=adapters)
        chosen.leave_out(f"the MTP layers of {path.name} are damaged")
        return model


def open_projector(model: Model, path: Path, options: ModelOptions) -> Projector:
    """Open the target's projector. Raises UsageError if the target is on RPC servers, or has a
    recurrent memory."""
    if options.rpc or model.recurrent:
        why = "is on RPC servers" if options.rpc else "has a recurrent memory"
        raise UsageError(
            f"{model.path.name} {why}, so localspec cannot show it images. Leave out --mmproj."
        )
    require_projector(path)
    return Projector(path, model, options)


def _why_one_at_a_time(model: Model, options: ModelOptions, largest: int | None) -> str | None:
    """Why a pair generates one answer at a time, as the end of a sentence; None if it need not."""
    if options.parallel == 1:
        return None
    if model.recurrent:
        return ": its memory is recurrent, and cannot hold several texts with drafts"
    if options.rpc:
        return ": its layers are on RPC servers"
    if options.mmproj is not None:
        return ", as it reads images"
    if largest is not None:
        return ", as exact answers require, since shared passes round differently"
    return None


def _open_drafts(
    chosen: ChosenDraft, target: Cache, options: ModelOptions, report: Report, opened: ExitStack
) -> _Drafts:
    """Open the chosen draft, which `opened` closes; `target` is empty. Raises if a named draft
    fails."""
    path = chosen.path
    if path is None:
        return _Drafts()
    try:
        with ExitStack() as own:
            if chosen.own_mtp:
                drafts = _Drafts(heads=open_mtp(target.model, target, options, own))
            elif (kind := head_kind(path)) is not None:
                require_usable(path, head=True)
                drafts = _Drafts(heads=open_head(kind, path, target, options, report, own))
            else:
                require_usable(path)
                drafts = _open_draft_model(path, target, options, report, own)
            opened.enter_context(own.pop_all())
    except _NO_DRAFT as error:
        if not chosen.automatic:
            raise
        what = f"the MTP layers of {path.name} fail" if chosen.own_mtp else f"{path.name} fails"
        chosen.leave_out(what, error)
        return _Drafts()
    if drafts.cache is not None:
        drafts.cache.model.name = chosen.name
    return drafts


def _open_draft_model(
    path: Path, target: Cache, options: ModelOptions, progress: Report, opened: ExitStack
) -> _Drafts:
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
    return _Drafts(cache, vocabulary_map)


def _slots(target: Cache, drafts: _Drafts, options: ModelOptions) -> Slots:
    heads: Sequence[TrainedHead | None] = drafts.heads or [None] * options.parallel
    size = target.model.vocabulary.size

    def model(cache: Context) -> DraftModel:
        if drafts.vocabulary_map is None:
            return DraftModel(cache, size)
        mapped = MappedCache(cache, drafts.vocabulary_map)
        return HeterogeneousDraftModel(mapped, size, way=options.cross_vocabulary)

    # Larger passes are faster on a GPU only, where a new answer does not wait long for them.
    small = options.gpu_layers == 0 or not library.accelerated()
    chunk, piece = options.parallel_chunk, _ALONE * options.parallel_chunk if small else None
    return Slots(target, drafts.cache, model, heads, chunk=chunk, piece=piece)


def _shares(progress: Report, files: Sequence[Path]) -> list[Report]:
    """Divide the progress among files, by size."""
    if progress is None:
        return [None] * len(files)
    sizes = [max(1, path.stat().st_size) if path.exists() else 1 for path in files]

    def share(number: int) -> Callable[[float], None]:
        before, own = sum(sizes[:number]), sizes[number]
        return lambda fraction: progress((before + fraction * own) / sum(sizes))

    return [share(number) for number in range(len(files))]
