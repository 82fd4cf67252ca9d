"""Internals of an engine, which tests let fail, slow down or count."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from localspec import Engine
from localspec.decoding.sampling import Rows
from localspec.llama.context import Context
from localspec.llama.native_context import SharedContext
from localspec.llama.threads import Threads
from localspec.scheduling.slots import Slot, Slots
from localspec.sessions.sessions import Sessions


def slot(engine: Engine) -> Slot:
    return engine.slots.all[0]


def contexts(engine: Engine) -> list[Any]:
    """The target's, and that of the draft model or head, if any."""
    return engine.slots.contexts


def sessions(engine: Engine) -> Sessions:
    return engine._sessions


def slots(engine: Engine) -> Slots:
    return engine.slots


def shared_contexts(engine: Engine) -> list[SharedContext]:
    """Of the target, and of a draft model."""
    first = slot(engine)
    return [cache.shared for cache in (first.cache, first.draft_cache) if cache is not None]


def threads(engine: Engine) -> Threads:
    return engine._threads


def drafts_of_kept_texts(engine: Engine) -> list[Sequence[int]]:
    """Tokens of the draft model for each kept text."""
    return [text.drafted for text in slots(engine).kept._texts]


def cancel_before(patch: pytest.MonkeyPatch, passes: int) -> None:
    """Cancel the pass after `passes` others."""
    left = itertools.count(passes, -1)
    before_each_pass(patch, lambda context, _: context.cancel() if next(left) == 0 else None)


def before_each_pass(patch: pytest.MonkeyPatch, do: Callable[[Context, Any], object]) -> None:
    """Call `do` with the context and the batch of every pass."""
    decode = Context._decode

    def watched(context: Context, batch: Any, outputs: int) -> Rows:
        do(context, batch)
        return decode(context, batch, outputs)

    patch.setattr(Context, "_decode", watched)
