"""Drafts that `localspec distill` trained here."""

from contextlib import suppress
from pathlib import Path

from localspec import paths
from localspec.errors import LocalspecError
from localspec.gguf.file import GGUFFile
from localspec.gguf.reader import read_gguf
from localspec.hub import places
from localspec.identity import content_identity

TARGET = "localspec.distill.target"
ACCEPTANCE = "localspec.distill.acceptance"
"""Metadata keys of a draft: its target's `content_identity`, and acceptance on held-out answers."""


def acceptance(target: GGUFFile, draft: GGUFFile) -> float | None:
    """Acceptance on this target's answers; None for a draft that was not trained on them."""
    identity, rate = draft.text(TARGET), draft.metadata.get(ACCEPTANCE)
    if identity is None or not isinstance(rate, float) or not 0.0 <= rate <= 1.0:
        return None
    try:
        return rate if identity == content_identity(target.path) else None
    except OSError:
        return None


def best_for(target: Path) -> Path | None:
    """The draft trained for a target, here or as part of the embedded pair, with the highest
    acceptance."""
    found: list[tuple[float, Path]] = []
    here = [place.path for place in places.distilled_drafts()]
    for path in (paths.embedded(paths.EMBEDDED_DRAFT), *here):
        with suppress(LocalspecError):
            rate = acceptance(read_gguf(target), read_gguf(path))
            if rate is not None:
                found.append((rate, path))
    return max(found)[1] if found else None
