"""Opening a pair: from references to an engine."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localspec import paths
from localspec.drafting import Drafting
from localspec.engine import Engine
from localspec.llama.options import ModelOptions
from localspec.store import KnowledgeStore, file_identity, machine

if TYPE_CHECKING:
    from localspec.llama.context import Context
    from localspec.llama.model import Model

Reference = str | os.PathLike[str]
"""A path to a GGUF file, or "demo" for the embedded pair."""

DEMO = "demo"


def load(
    model: Reference | None = None,
    *,
    draft: Reference | None = "auto",
    options: ModelOptions | None = None,
    drafting: Drafting | None = None,
    wait: bool = True,
    progress: Callable[[float], None] | None = None,
) -> Engine:
    """Open a model, and a draft model with it.

    Args:
        model: what to open; None is the embedded model.
        draft: a reference, None or "none" for no draft model, "auto" for the one that belongs to
            the target (known for the embedded model so far). The n-gram drafter needs none.
        options: where and how the models run.
        drafting: how to draft, unless a call says otherwise.
        wait: what a call does while another one generates: wait for it, or raise EngineBusy.
        progress: called with the loaded fraction of the target; an exception it raises stops the
            loading and comes out here.

    Raises:
        ModelNotFound, ModelInvalid, DraftMismatch, NativeError: see `localspec.errors`.
    """
    from localspec.llama import lighter
    from localspec.llama.context import Context
    from localspec.llama.model import Model
    from localspec.llama.spelling import translation

    options = options or ModelOptions()
    path = _resolve(model)
    embedded = paths.embedded(paths.EMBEDDED_TARGET)
    why_no_draft: str | None = None
    if draft == "auto":
        known = path.resolve() == embedded.resolve()
        draft = paths.embedded(paths.EMBEDDED_DRAFT) if known else None
        why_no_draft = (
            None if known else "no draft model is known for this target; name one with --draft"
        )
    elif draft in (None, "none"):
        draft, why_no_draft = None, "none was asked for"

    opened: list[Model | Context] = []
    try:
        target_model = Model(path, options, progress=progress)
        opened.append(target_model)
        target = Context(target_model, options)
        opened.append(target)
        draft_context = draft_path = crossed = None
        if draft is not None:
            draft_path = _resolve(draft, embedded=paths.EMBEDDED_DRAFT)
            draft_options = options.for_draft(target.capacity)
            copy = lighter.remembered(draft_path, draft_options)
            draft_model = Model(copy or draft_path, draft_options)
            opened.append(draft_model)
            if options.cross_vocabulary == "off":
                target_model.vocabulary.require_shared_with(draft_model.vocabulary)
            if copy is None:
                copy = lighter.lighter(draft_model, draft_options)
                if copy is not None:
                    opened.pop().close()
                    draft_model = Model(copy, draft_options)
                    opened.append(draft_model)
            if target_model.vocabulary.difference(draft_model.vocabulary) is not None:
                crossed = translation(target_model.vocabulary, draft_model.vocabulary)
                room = min(draft_model.trained_context, crossed.room(target.capacity))
                draft_options = replace(draft_options, context=max(room, target.capacity))
            draft_context = Context(draft_model, draft_options)
            opened.append(draft_context)
    except BaseException:
        for part in reversed(opened):
            part.close()
        raise
    return Engine(
        target,
        draft_context,
        draft_path=draft_path,
        crossed=crossed,
        cross_vocabulary=options.cross_vocabulary,
        store=KnowledgeStore(
            _identity([target, draft_context], options)
            | ({} if crossed is None else {"vocabulary": options.cross_vocabulary})
        ),
        side_by_side=draft_context is not None and _side_by_side(options),
        drafting=drafting or Drafting(),
        wait=wait,
        why_no_draft=why_no_draft,
    )


def _resolve(reference: Reference | None, *, embedded: str = paths.EMBEDDED_TARGET) -> Path:
    if not reference or reference == DEMO:
        return paths.embedded(embedded)
    return Path(reference).expanduser()


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
