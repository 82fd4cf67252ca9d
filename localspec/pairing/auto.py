"""`-d auto`: the draft model with the largest expected gain, among the files here."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from localspec import paths
from localspec.errors import LocalspecError
from localspec.files import read_file, write_atomically
from localspec.gguf.extras import Extras
from localspec.gguf.file import GGUFFile
from localspec.gguf.reader import read_gguf
from localspec.hub.local import LocalModel, local_models
from localspec.hub.places import SELF_MADE
from localspec.identity import file_identity, fingerprint
from localspec.llama.options import ModelOptions
from localspec.pairing.choice import Choice
from localspec.pairing.drafts import DraftCandidate, candidates
from localspec.pairing.forecast import Forecast
from localspec.pairing.recommendations import Recommendation, of_target
from localspec.text import printable

FORMAT = 1

logger = logging.getLogger("localspec.pairing")


def choose(
    target: Path, options: ModelOptions, *, accelerated: bool = False, device_free: int = 0
) -> Choice:
    """The local draft model with the highest speed-up, measured by `localspec doctor` or forecast.

    What was chosen is remembered until files come or go. The embedded target has its own, which
    `localspec.loading` knows without asking here.

    Args:
        accelerated: whether the models run on a GPU.
        device_free: bytes that it has left in memory of its own.
    """
    try:
        models = local_models()
        known = of_target(target, options)
        signature = _signature(target, models, known, options, accelerated)
    except OSError:  # the target is not there; opening it will say so
        return Choice(None, "the target cannot be read")
    remembered = _remembered(target, signature)
    if remembered is not None:
        return remembered
    try:
        file = read_gguf(target)
    except LocalspecError:
        return Choice(None, "the target cannot be read")
    choice = decide(file, models, known, options, accelerated=accelerated, device_free=device_free)
    if not choice.passing:
        _remember(target, signature, choice)
    return choice


def decide(
    target: GGUFFile,
    models: Sequence[LocalModel],
    known: Sequence[Recommendation],
    options: ModelOptions,
    *,
    accelerated: bool,
    device_free: int = 0,
) -> Choice:
    """The same, of models that were found and pairs that were measured."""
    measured = {_real(one.draft): one for one in known if one.draft is not None}
    found = candidates(
        target,
        # Of what was made of some model's own file a guess would think too well.
        [m for m in models if m.source != SELF_MADE or _real(m.path) in measured],
        context=options.context or None,
        accelerated=accelerated,
        device_free=device_free,
        through_text=_crosses(options),
        remote=bool(options.rpc),
        extras=Extras.of(options),
    )
    fitting = [_with_measured(c, measured.get(_real(c.model.path))) for c in found if c.usable]
    fitting.sort(key=lambda c: -_speed(c))
    crowded = False
    for candidate in fitting:
        if candidate.forecast is None or not candidate.forecast.pays:
            continue
        if candidate.verdict is not None and any(
            check.rule == "memory" for check in candidate.verdict.warnings
        ):
            crowded = True
            continue
        return Choice(candidate.model.path, _why(candidate), passing=crowded)
    return Choice(None, _why_none(found, fitting), passing=crowded)


def _crosses(options: ModelOptions) -> bool:
    """Whether drafts of another vocabulary are allowed."""
    return bool(getattr(options, "cross_vocabulary", "auto") != "off")


def _with_measured(candidate: DraftCandidate, known: Recommendation | None) -> DraftCandidate:
    if known is None or candidate.forecast is None:
        return candidate
    acceptance = sum(known.acceptance.values()) / max(1, len(known.acceptance))
    forecast = Forecast(known.speed_up, 1, known.cost, acceptance, measured=True)
    return replace(candidate, forecast=forecast)


def _speed(candidate: DraftCandidate) -> float:
    return candidate.forecast.speed_up if candidate.forecast is not None else 0.0


def _why(candidate: DraftCandidate) -> str:
    forecast = candidate.forecast
    assert forecast is not None
    if forecast.measured:
        return (
            f"using {candidate.model.name} as draft model (localspec doctor measured "
            f"{forecast.speed_up:.2f}×)"
        )
    return (
        f"using {candidate.model.name} as draft model (expected {forecast.speed_up:.1f}×; run "
        "localspec doctor to measure it)"
    )


def _why_none(found: Sequence[DraftCandidate], fitting: Sequence[DraftCandidate]) -> str:
    alone = "only the n-gram drafter is used"
    if fitting:
        best = fitting[0]
        name, forecast = best.model.name, best.forecast
        if forecast is not None and forecast.pays:
            return f"{alone}: there is not enough memory for {name} as well"
        how = "was measured not to" if forecast is not None and forecast.measured else "would not"
        return f"{alone}: of the models here, {name} fits best, and {how} make it faster"
    close = [c for c in found if c.verdict is not None]
    if close:
        first = close[0]
        return f"{alone}: no model here fits; {first.model.name}: {_inside(first.why_not or '')}"
    return (
        f"{alone}: no smaller model here fits; name one with --draft, or download one with "
        "localspec pull"
    )


def _inside(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]


def _real(path: Path | None) -> Path | None:
    if path is None:
        return None
    try:
        return path.resolve()
    except (OSError, RuntimeError):
        return path


def _signature(
    target: Path,
    models: Sequence[LocalModel],
    known: Sequence[Recommendation],
    options: ModelOptions,
    accelerated: bool,
) -> str:
    """Changes with everything that the choice depends on, but for free memory."""
    facts: dict[str, Any] = {
        "format": FORMAT,
        "target": file_identity(target),
        "models": [[str(m.path), m.size, _changed(m.path), m.problem] for m in models],
        "known": [[str(one.draft), one.speed_up] for one in known],
        "context": options.context,
        "accelerated": accelerated,
        "crosses": _crosses(options),
        "remote": bool(options.rpc),
        "extras": [
            [str(path), _changed(Path(path))]
            for path in (*(one.path for one in options.adapters), options.mmproj)
            if path is not None
        ],
    }
    return fingerprint(facts)


def _changed(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _file(target: Path) -> Path:
    name = fingerprint({"target": str(_real(target))})[:24]
    return paths.cache_folder() / "auto" / f"{name}.json"


def _remembered(target: Path, signature: str) -> Choice | None:
    try:
        stored = json.loads(read_file(_file(target)))
        if stored["signature"] != signature:
            return None
        draft = stored["draft"]
        return Choice(None if draft is None else Path(draft), printable(stored["why"], 600))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _remember(target: Path, signature: str, choice: Choice) -> None:
    path = _file(target)
    draft = None if choice.draft is None else str(choice.draft)
    record = {"signature": signature, "draft": draft, "why": choice.why}
    try:
        write_atomically(path, json.dumps(record))
    except (OSError, ValueError) as error:
        logger.info("the choice cannot be kept in %s: %s", path, error)
