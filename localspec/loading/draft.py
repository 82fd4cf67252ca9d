"""Which draft model a reference means."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from localspec import paths
from localspec.gguf.description import require_undamaged
from localspec.gguf.mtp import has_mtp
from localspec.hub import resolution
from localspec.llama import devices, library
from localspec.llama.options import AUTO, ModelOptions
from localspec.pairing.auto import Choice, choose
from localspec.pairing.trained import best_for
from localspec.self_draft.recipe import SELF, Wish


def choose_draft(target: Path, options: ModelOptions) -> Choice:
    """What `-d auto` means for a target."""
    # Looking around takes a while, and the embedded target has its own draft, or one that was
    # trained here.
    if target.resolve() == paths.embedded(paths.EMBEDDED_TARGET).resolve():
        return Choice(best_for(target) or paths.embedded(paths.EMBEDDED_DRAFT), "")
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
    meant = reference in (AUTO, SELF)
    with suppress(OSError, ValueError):  # mostly it names no file
        meant = meant or target.samefile(reference)
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
    wish = Wish.parse(reference)
    if wish is None:
        found = resolution.find(reference, offline=offline, embedded=paths.EMBEDDED_DRAFT)
        return NamedDraft(found.path, resolution.name_of(reference, found.path), found.notices)
    from localspec.self_draft.making import self_draft

    require_undamaged(target)
    made = self_draft(target, wish, options, lambda: progress is None or progress(0.0))
    return NamedDraft(made.path, "" if made.path is None else made.path.stem, (made.words,))
