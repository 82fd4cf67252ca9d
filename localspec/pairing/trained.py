"""Drafts that `localspec distill` trained here."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from localspec.errors import LocalspecError
from localspec.gguf.file import GGUFFile
from localspec.gguf.reader import read_gguf
from localspec.hub import places
from localspec.identity import content_identity

TARGET = "localspec.distill.target"
ACCEPTANCE = "localspec.distill.acceptance"
"""Keys of a draft's metadata: its target's `content_identity`, and its acceptance on held-back
answers.
"""


def acceptance(target: GGUFFile, draft: GGUFFile) -> float | None:
    """On this target's answers; None for one that was not trained on them."""
    told, right = draft.text(TARGET), draft.metadata.get(ACCEPTANCE)
    if told is None or not isinstance(right, float) or not 0.0 <= right <= 1.0:
        return None
    try:
        return right if told == content_identity(target.path) else None
    except OSError:
        return None


def best_for(target: Path) -> Path | None:
    """The draft trained for a target with the highest acceptance."""
    found: list[tuple[float, str, Path]] = []
    drafts = [place.path for place in places.distilled()]
    if not drafts:
        return None
    try:
        file = read_gguf(target, tensors=False)
    except LocalspecError:
        return None
    for path in drafts:
        with suppress(LocalspecError):
            right = acceptance(file, read_gguf(path, tensors=False))
            if right is not None:
                found.append((right, str(path), path))
    return max(found)[2] if found else None
