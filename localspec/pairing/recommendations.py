"""Speed-ups of pairs that `localspec doctor` measured on this machine."""

import math
from contextlib import suppress
from pathlib import Path
from typing import Any

from localspec.identity import file_identity, machine
from localspec.llama.options import ModelOptions, identity_with_adapters
from localspec.llama.outcomes import Outcomes

outcomes = Outcomes("recommendations", 2_000)


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
