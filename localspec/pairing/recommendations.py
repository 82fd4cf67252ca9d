"""What `localspec doctor` found out about pairs on this machine."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import FiniteFloat, TypeAdapter

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
    """A pair, measured here. `draft`: None for the n-gram alone; `speed_up` against plain decoding,
    the mean over kinds of text, `by_kind` of each; `acceptance` of the draft model's tokens, by
    kind; `cost` of a draft pass, in passes of the target, 0 without one; `when`: date, ISO."""

    target: Path
    draft: Path | None
    speed_up: FiniteFloat
    by_kind: dict[str, FiniteFloat]
    acceptance: dict[str, FiniteFloat]
    cost: FiniteFloat
    when: str


_ADAPTER = TypeAdapter(Recommendation)


def store(found: Recommendation, options: ModelOptions) -> None:
    """Keep it, replacing what was found of the pair before."""
    identity = _identity(found.target, found.draft, options)
    path = folder() / f"{fingerprint(identity)[:24]}.json"
    record = {"format": FORMAT, "identity": identity} | _ADAPTER.dump_python(found, mode="json")
    try:
        write_atomically(path, json.dumps(record))
    except OSError as error:
        logger.warning("the recommendation cannot be kept in %s: %s", path, error)


def of_target(target: Path, options: ModelOptions) -> list[Recommendation]:
    """What is known of this target here, with these options and drafts that have not changed."""
    try:
        wanted = _identity(target, None, options)
        files = sorted(folder().glob("*.json"))[:MOST_FILES]
    except OSError:
        return []
    found = (_read(path, wanted) for path in files)
    return [one for one in found if one is not None]


def folder() -> Path:
    return paths.cache_folder() / "recommendations"


def _read(path: Path, wanted: dict[str, Any]) -> Recommendation | None:
    """A stored one, if it is of the wanted target and whole."""
    try:
        stored = json.loads(read_file(path))
        identity = stored["identity"]
        if stored["format"] != FORMAT or identity | {"draft": None} != wanted:
            return None
        found = _ADAPTER.validate_python(stored)
        same = found.draft is None or file_identity(found.draft) == identity["draft"]
        return found if same else None
    except FileNotFoundError:
        return None  # the draft is gone
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
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
