"""What `localspec doctor` found out about pairs on this machine; `-d auto` goes by it."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localspec import paths
from localspec.files import read_file, write_atomically
from localspec.identity import file_identity, fingerprint, machine
from localspec.llama.adapters import adapted_identity
from localspec.llama.options import ModelOptions

FORMAT = 1
MOST_FILES = 2_000

logger = logging.getLogger("localspec.pairing")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """A pair, measured here.

    Attributes:
        draft: None for the n-gram alone.
        speed_up: against plain decoding, the mean over kinds of text.
        by_kind: the same for each kind.
        acceptance: chance that a token of the draft model is accepted, by kind.
        cost: of a pass of the draft model, in passes of the target; 0 without one.
        when: date, ISO.
    """

    target: Path
    draft: Path | None
    speed_up: float
    by_kind: Mapping[str, float]
    acceptance: Mapping[str, float]
    cost: float
    when: str


def store(found: Recommendation, options: ModelOptions) -> None:
    """Keep it, replacing what was found of the pair before."""
    identity = _identity(found.target, found.draft, options)
    record = {
        "format": FORMAT,
        "identity": identity,
        "target": str(found.target),
        "draft": None if found.draft is None else str(found.draft),
        "speed_up": found.speed_up,
        "by_kind": dict(found.by_kind),
        "acceptance": dict(found.acceptance),
        "cost": found.cost,
        "when": found.when,
    }
    path = folder() / f"{fingerprint(identity)[:24]}.json"
    try:
        write_atomically(path, json.dumps(record))
    except OSError as error:
        logger.warning("the recommendation cannot be kept in %s: %s", path, error)


def of_target(target: Path, options: ModelOptions) -> list[Recommendation]:
    """What is known of pairs with this target, on this machine and with these options.

    Pairs whose draft has changed or gone are left out.
    """
    try:
        wanted = _identity(target, None, options)
        files = sorted(folder().glob("*.json"))[:MOST_FILES]
    except OSError:
        return []
    found = (_read(path, wanted) for path in files)
    return [one for one in found if one is not None]


def folder() -> Path:
    """Where they are."""
    return paths.cache_folder() / "recommendations"


def _read(path: Path, wanted: dict[str, Any]) -> Recommendation | None:
    """A stored one, if it is of the wanted target; None also where it is damaged."""
    try:
        stored = json.loads(read_file(path))
        identity = stored["identity"]
        if stored["format"] != FORMAT or identity | {"draft": None} != wanted:
            return None
        draft = None if stored["draft"] is None else Path(stored["draft"])
        if draft is not None and file_identity(draft) != identity["draft"]:
            return None
        numbers = [float(stored["speed_up"]), float(stored["cost"])]
        by_kind, acceptance = (
            {str(kind): float(value) for kind, value in stored[name].items()}
            for name in ("by_kind", "acceptance")
        )
        if not all(map(math.isfinite, [*numbers, *by_kind.values(), *acceptance.values()])):
            return None
        return Recommendation(
            target=Path(stored["target"]),
            draft=draft,
            speed_up=numbers[0],
            by_kind=by_kind,
            acceptance=acceptance,
            cost=numbers[1],
            when=str(stored["when"])[:10],
        )
    except FileNotFoundError:
        return None  # the draft is gone
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        logger.info("the recommendation %s cannot be used: %s", path, error)
        return None


def _identity(target: Path, draft: Path | None, options: ModelOptions) -> dict[str, Any]:
    """All that the figures depend on, as JSON values."""
    return {
        "machine": machine(),
        "target": adapted_identity(target, options.adapters),
        "draft": None if draft is None else file_identity(draft),
        "threads": [options.threads, options.draft_threads],
        "gpu_layers": [options.gpu_layers, options.draft_gpu_layers],
        "kv": [options.kv_type_k, options.kv_type_v],
    }
