"""Choice of the draft model that a reference stands for."""

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from localspec import paths
from localspec.errors import UsageError
from localspec.gguf.mtp import has_mtp
from localspec.hub import resolution
from localspec.hub.cache import require_usable
from localspec.llama import devices, library
from localspec.llama.options import AUTO, ModelOptions
from localspec.pairing.auto import Choice, choose
from localspec.pairing.forecast import best_trained
from localspec.pairing.memory import PairUse
from localspec.self_draft.recipe import SELF, SelfDraftRequest
from localspec.typed import typed

Reference = str | os.PathLike[str]
"""A path, `user/repo:quant`, a catalogue name, or "demo" for the built-in pair (see
`localspec.hub.reference`)."""


@dataclass
class ChosenDraft:
    """The draft to open. `path`: None for none; `own_mtp`: whether it consists of the MTP layers in
    the target's file; `automatic`: whether it was not named by the user; `why`, `why_none`: the
    reason for this one, or for none."""

    path: Path | None = None
    name: str = ""
    notices: tuple[str, ...] = ()
    own_mtp: bool = False
    automatic: bool = False
    why: str | None = None
    why_none: str | None = None

    def leave_out(self, what: str, error: Exception | None = None) -> None:
        cause = "" if error is None else f": {str(error).rstrip('.')}"
        self.why_none = f"only the n-gram drafter is used: {what}{cause}"
        self.why = self.path = None
        self.own_mtp = False


@typed
def draft_for(
    target: Path,
    draft: Reference | None,
    options: ModelOptions,
    *,
    offline: bool | None = None,
    progress: Callable[[float], None] | None = None,
) -> ChosenDraft:
    """Which draft to open. Raises as `localspec.hub.resolution.find` and
    `localspec.self_draft.maker.self_draft`, and UsageError for an adapter without a named draft
    model."""
    if options.draft_adapters and draft in (None, AUTO, "none"):
        raise UsageError(
            "An adapter of the draft model fits one model. Name that with -d (draft=), or leave "
            "out --lora-draft (lora_draft=)."
        )
    automatic, why = draft == AUTO, None
    if _takes_own_mtp(target, draft, options):
        why = "using the model's own MTP layers as draft"
        return ChosenDraft(target, own_mtp=True, automatic=automatic, why=why)
    if draft in (None, "none"):
        return ChosenDraft(why_none="none was requested")
    if automatic:
        choice = choose_draft(target, options)
        if choice.draft is None:
            return ChosenDraft(automatic=True, why_none=choice.why)
        draft, why = choice.draft, choice.why or None
    assert draft is not None
    request = SelfDraftRequest.parse(draft)
    if request is None:
        file = resolution.find(draft, offline=offline, embedded=paths.EMBEDDED_DRAFT)
        name = resolution.name_of(draft, file.path)
        return ChosenDraft(file.path, name, file.notices, automatic=automatic, why=why)
    from localspec.self_draft.maker import self_draft

    require_usable(target)
    made = self_draft(target, request, options, lambda: progress is None or progress(0.0))
    if made.path is None:
        none = "no draft made from its own file pays"
        return ChosenDraft(notices=(made.words,), automatic=automatic, why=why, why_none=none)
    return ChosenDraft(made.path, made.path.stem, (made.words,), automatic=automatic, why=why)


def choose_draft(target: Path, options: ModelOptions) -> Choice:
    # The search takes a while, and the built-in target has its own draft, or one trained here.
    if target.resolve() == paths.embedded(paths.EMBEDDED_TARGET).resolve():
        return Choice(best_trained(target), "")
    use = PairUse(
        options=options,
        accelerated=options.gpu_layers != 0 and library.accelerated(),
        device_free=devices.free_memory() if options.gpu_layers < 0 else 0,
    )
    return choose(target, use)


def _takes_own_mtp(target: Path, reference: Reference | None, options: ModelOptions) -> bool:
    """Whether the reference means MTP layers in the target's own file."""
    # Heads that read hidden states handle text only, and take no adapter.
    if reference is None or options.rpc or options.draft_adapters or options.mmproj is not None:
        return False
    meant = reference in (AUTO, SELF)
    with suppress(OSError, ValueError):  # usually not a file name
        meant = meant or target.samefile(reference)
    return meant and has_mtp(target)
