"""Speed-ups of pairs that `localspec doctor` measured here, and drafts that `distill` trained."""

import math
from contextlib import suppress
from pathlib import Path
from typing import Any

from localspec import paths
from localspec.errors import LocalspecError
from localspec.gguf.file import GGUFFile
from localspec.gguf.reader import read_gguf
from localspec.hub import places
from localspec.identity import content_identity, file_identity, machine
from localspec.llama.options import ModelOptions, identity_with_adapters
from localspec.llama.outcomes import Outcomes

outcomes = Outcomes("recommendations", 2_000)
TARGET = "localspec.distill.target"
ACCEPTANCE = "localspec.distill.acceptance"
"""Metadata keys of a draft: its target's `content_identity`, and acceptance on held-out answers."""


def store(target: Path, draft: Path, speed_up: float, options: ModelOptions) -> None:
    """Store a speed-up, replacing any earlier one of the pair."""
    identity = _identity(target, options) | {"draft": file_identity(draft)}
    outcomes.store(identity, {"identity": identity, "draft": str(draft), "speed_up": speed_up})


def of_target(target: Path, options: ModelOptions) -> dict[Path, float]:
    """Speed-ups measured for this target with these options, by the real path of the draft. Leaves
    out drafts whose files have changed."""
    found = dict[Path, float]()
    try:
        wanted = _identity(target, options)
    except OSError:
        return found
    for stored in outcomes.all().values():
        # The record may be invalid, or the draft removed.
        with suppress(OSError, ValueError, KeyError, TypeError, RuntimeError):
            draft, speed_up = Path(stored["draft"]).resolve(), float(stored["speed_up"])
            same = stored["identity"] == wanted | {"draft": file_identity(draft)}
            if same and math.isfinite(speed_up):
                found[draft] = speed_up
    return found


def _identity(target: Path, options: ModelOptions) -> dict[str, Any]:
    """Everything but the draft that the figures depend on, as JSON values."""
    return {
        "machine": machine(),
        "target": identity_with_adapters(target, options.adapters),
        "threads": [options.threads, options.draft_threads],
        "gpu_layers": [options.gpu_layers, options.draft_gpu_layers],
        "kv": [options.kv_type_k, options.kv_type_v],
    }


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
