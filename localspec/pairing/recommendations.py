"""What `localspec doctor` found out about pairs on this machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import FiniteFloat, TypeAdapter

from localspec.identity import file_identity, machine
from localspec.llama.adapters import adapted_identity
from localspec.llama.options import ModelOptions
from localspec.llama.outcomes import Outcomes

outcomes = Outcomes("recommendations", 2_000)


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
    record = {"identity": identity} | _ADAPTER.dump_python(found, mode="json")
    outcomes.keep(identity, record)


def of_target(target: Path, options: ModelOptions) -> list[Recommendation]:
    """What is known of this target here, with these options and drafts that have not changed."""
    try:
        wanted = _identity(target, None, options)
    except OSError:
        return []
    found = (_valid(one, wanted) for one in outcomes.all().values())
    return [one for one in found if one is not None]


def _valid(stored: dict[str, Any], wanted: dict[str, Any]) -> Recommendation | None:
    """A stored one, if it is of the wanted target and whole."""
    try:
        if stored["identity"] | {"draft": None} != wanted:
            return None
        found = _ADAPTER.validate_python(stored)
        same = found.draft is None or file_identity(found.draft) == stored["identity"]["draft"]
        return found if same else None
    except (OSError, ValueError, KeyError, TypeError):  # somebody changed it, or the draft is gone
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
