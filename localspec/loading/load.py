"""Opening a pair: from references to an engine."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from localspec.drafters.options import Drafting
from localspec.engine import Engine
from localspec.errors import (
    DraftMismatch,
    ModelInvalid,
    ModelNotFound,
    NativeError,
    UsageError,
)
from localspec.gguf.description import require_undamaged
from localspec.gguf.heads import is_head, require_no_head
from localspec.hub import resolution
from localspec.keywords import LoadKeywords, with_keywords
from localspec.llama import compute_thread
from localspec.llama.options import ModelOptions
from localspec.loading.cost_identity import cost_identity
from localspec.loading.draft import choose_draft, find_draft, open_draft, takes_own_mtp
from localspec.loading.heads import OpenHead, OpenMedusa, open_head, open_own_mtp
from localspec.loading.places import open_cache, open_projector, open_target
from localspec.loading.same_bits import batch_invariant, equal_passes, keep_same_bits
from localspec.loading.thread_choice import side_by_side, thread_choice
from localspec.policy.other_processes import OtherProcesses
from localspec.policy.store import ProfileStore

if TYPE_CHECKING:
    from pathlib import Path

    from typing_extensions import Unpack  # of Python itself from 3.11 on

    from localspec.drafters.trained_head import TrainedHead
    from localspec.drafters.vocabulary_map import VocabularyMap
    from localspec.llama.context import Context
    from localspec.llama.shared_context import SharedContext
    from localspec.scheduling.seats import Seats

Reference = str | os.PathLike[str]
"""A model as people name it: a path, `user/repo:quant`, a name in the catalogue, "demo" for the
embedded pair (see `localspec.hub.reference`)."""

OWN = ("model", "draft", "options", "drafting", "wait", "progress", "offline")
"""What `load` takes besides the fields of the options objects."""

_NO_DRAFT = (DraftMismatch, ModelInvalid, ModelNotFound, NativeError)
"""What is wrong where a draft model that nobody asked for is left out."""


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
        model: reference of the target; None opens the embedded model.
        draft: a reference; None or "none" for no draft model; "auto" for MTP layers in the model's
            file, else the local draft model with the largest expected gain, if any pays
            (`localspec.pairing.auto`); "self" for MTP layers, else a draft made from the model's
            own file, which takes some minutes once (`localspec.self_draft.making`).
        options: how the models run.
        drafting: how to draft; a call may override it.
        wait: whether a call waits while another one generates, or raises EngineBusy.
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
    from localspec.llama.shared_context import SharedContext
    from localspec.parallel_engine import ParallelEngine

    options, drafting = with_keywords(options, drafting, keywords, OWN)
    others = OtherProcesses()  # watches the machine from now on
    found = resolution.find(model, offline=offline)
    path, notices = found.path, list(found.notices)
    why_no_draft: str | None = None
    why_draft: str | None = None
    automatic = draft == "auto"
    if options.draft_adapters and draft in (None, "auto", "none"):
        raise UsageError(
            "An adapter of the draft model fits one model. Name that with -d (draft=), or leave "
            "out --lora-draft (lora_draft=)."
        )
    # What drafts from hidden states is made for text, and takes no adapter.
    for_text = options.mmproj is None and not options.draft_adapters
    own_mtp = for_text and takes_own_mtp(path, draft, options)
    draft_path: Path | None = None
    draft_name = ""
    if own_mtp:
        draft, draft_path = None, path
        why_draft = "the layer that the model was trained with to predict ahead drafts"
    elif automatic:
        choice = choose_draft(path, options)
        draft = choice.draft
        if draft is None:
            why_no_draft = choice.why
        else:
            why_draft = choice.why or None
    elif draft in (None, "none"):
        draft, why_no_draft = None, "none was asked for"
    if draft is not None:
        named = find_draft(draft, path, options, offline=offline, progress=progress)
        draft_path, draft_name = named.path, named.name
        notices += named.notices
        if draft_path is None:
            why_no_draft = "no draft made from its own file pays"

    files = [path] if draft_path is None or own_mtp else [path, draft_path]
    reports = _shares(progress, files)
    with ExitStack() as opened:
        require_undamaged(path)
        require_no_head(path)
        try:
            target_model = open_target(path, options, reports[0], mtp=own_mtp)
        except ModelInvalid:
            if not (own_mtp and automatic):
                raise
            own_mtp = False  # where nobody asked for them, the model without them is as good
            target_model = open_target(path, options, reports[0])
            why_no_draft = (
                f"only the n-gram drafter is used: the MTP layers of {path.name} are damaged"
            )
            why_draft = draft_path = None
        opened.enter_context(target_model)
        target_model.name = resolution.name_of(model, path)
        if options.parallel > 1 and target_model.recurrent:
            options = replace(options, parallel=1)
            notices.append(
                f"{path.name} answers one at a time: its memory is recurrent, and cannot hold "
                "several texts that are drafted for."
            )
        if options.parallel > 1 and options.rpc:
            options = replace(options, parallel=1)
            notices.append(f"{path.name} answers one at a time: its layers are on RPC servers.")
        if options.parallel > 1 and options.mmproj is not None:
            options = replace(options, parallel=1)
            notices.append(f"{path.name} answers one at a time, as it sees images.")
        largest, identity = None, cost_identity([target_model], options)
        if options.exact:
            largest = equal_passes(target_model, options, identity)
        if options.parallel > 1 and largest is not None:
            options = replace(options, parallel=1)
            notices.append(
                f"{path.name} answers one at a time, as exact answers must where passes that "
                "answers share round otherwise."
            )
        target = opened.enter_context(closing(open_cache(target_model, options)))
        projector = open_projector(target_model, options)
        if projector is not None:
            opened.enter_context(closing(projector))
        if largest is not None:
            assert not isinstance(target, SharedContext)
            keep_same_bits(target, largest)
        draft_context = vocabulary_map = None
        head: OpenHead | OpenMedusa | None = None
        if own_mtp:
            head = opened.enter_context(closing(open_own_mtp(target, options)))
        elif draft_path is not None and is_head(draft_path):
            require_undamaged(draft_path)
            if projector is not None:
                raise DraftMismatch(
                    f"{draft_path.name} is a trained head, which drafts only for text. Leave out "
                    "--mmproj, or choose another draft."
                )
            head = opened.enter_context(closing(open_head(draft_path, target, options, reports[1])))
        elif draft_path is not None:
            try:
                open_one = open_draft(draft_path, target, options, reports[1])
                draft_context, vocabulary_map = open_one.cache, open_one.vocabulary_map
                opened.callback(draft_context.model.close)
                draft_context.model.name = draft_name
                opened.callback(draft_context.close)
            except _NO_DRAFT as error:
                # Where nobody asked for this draft model, the target alone is as good.
                if not automatic:
                    raise
                why_no_draft = _alone(f"{draft_path.name} fails", error)
                why_draft = draft_path = None
        try:
            seated = _seated(target, draft_context, vocabulary_map, options, head)
        except NativeError as error:
            if not (own_mtp and automatic):
                raise
            assert head is not None
            head.close()  # for some answers there may have been room
            seated = _seated(target, None, None, options, None)
            why_no_draft = _alone(f"the MTP layers of {path.name} fail", error)
            why_draft = draft_path = head = None
        caches, seats, one_head = seated
        drafts = draft_context if head is None else head
        models = [target_model, None if drafts is None else drafts.model]
        controller, fixed_threads = thread_choice(options, target_model, others)
        engine = (Engine if seats is None else ParallelEngine)(
            *caches,
            draft_path=draft_path,
            vocabulary_map=vocabulary_map,
            cross_vocabulary=options.cross_vocabulary,
            store=ProfileStore(
                cost_identity(models, options)
                | ({} if vocabulary_map is None else {"vocabulary": options.cross_vocabulary})
            ),
            threads=controller,
            fixed_threads=fixed_threads,
            side_by_side=seats is None and draft_context is not None and side_by_side(options),
            drafting=drafting,
            wait=wait,
            why_no_draft=why_no_draft,
            why_draft=why_draft,
            notices=tuple(notices),
            prompt_cache=options.prompt_cache,
            head=one_head,
            exact=options.exact,
            batch_invariant=partial(batch_invariant, target_model, options, identity),
            projector=projector,
        )
        if isinstance(engine, ParallelEngine) and seats is not None:
            engine.serve(seats)
        opened.pop_all()
    compute_thread.rest()  # answers may be asked for in other threads
    return engine


def _seated(
    target: Context | SharedContext,
    draft: Context | SharedContext | None,
    vocabulary_map: VocabularyMap | None,
    options: ModelOptions,
    head: OpenHead | OpenMedusa | None,
) -> tuple[tuple[Context, Context | None], Seats | None, TrainedHead | None]:
    """An answer's caches, of the target and of the draft model, and its head; where several are
    generated at once, their seats, and what the first of these has.

    Raises:
        NativeError: there is no room for a head's cache.
    """
    from localspec.llama.shared_context import SharedContext
    from localspec.parallel_engine import seats_over

    if isinstance(target, SharedContext):
        assert draft is None or isinstance(draft, SharedContext)
        make_head = None if head is None else head.make
        seats = seats_over(target, draft, vocabulary_map, options, make_head)
        first = seats.all[0]
        return (first.cache, first.draft_cache), seats, first.parts.head
    assert not isinstance(draft, SharedContext)
    return (target, draft), None, None if head is None else head.make()


def _alone(what: str, error: Exception) -> str:
    """Why nothing but the n-gram drafts, where a draft that nobody asked for fails."""
    return f"only the n-gram drafter is used: {what}: {str(error).rstrip('.')}"


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
