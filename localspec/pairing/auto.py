"""The local draft models for a target, best first, with the speed-ups that `localspec doctor`
measured on this machine, and the one that `-d auto` takes."""

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from os.path import realpath
from pathlib import Path
from typing import Any

from localspec.cgroups import available_memory
from localspec.errors import LocalspecError
from localspec.files import size_and_time
from localspec.gguf.description import require_usable
from localspec.gguf.file import GGUFFile
from localspec.gguf.reader import read_gguf, readable
from localspec.gguf.vocabularies import VocabularyFacts, compare
from localspec.hub import catalog
from localspec.hub.local import EMBEDDED, SELF_MADE, LocalModel, local_models
from localspec.hub.reference import DEMO
from localspec.identity import file_identity, machine
from localspec.llama.options import ModelOptions, identity_with_adapters
from localspec.llama.outcomes import Outcomes
from localspec.pairing.forecast import Forecast, forecast
from localspec.pairing.memory import PairUse
from localspec.pairing.rules import WARN, Check, failure, judge
from localspec.text import printable

choices = Outcomes("auto", 200)
"""Cached choices, keyed by all inputs except free memory."""
speed_ups = Outcomes("recommendations", 2_000)


@dataclass(frozen=True, slots=True)
class Choice:
    """A draft (None: only the n-gram drafter), and the reason, a clause or empty. `temporary`: it
    depends on a shortage of memory."""

    draft: Path | None
    why: str
    temporary: bool = False


@dataclass(frozen=True, slots=True)
class DraftCandidate:
    """A local model considered as a draft. `why_not`: a sentence without full stop, if it is not
    usable; `checks`: empty if the file was not examined; `forecast`: of a usable pair."""

    model: LocalModel
    why_not: str | None
    checks: tuple[Check, ...] = ()
    forecast: Forecast | None = None

    @property
    def usable(self) -> bool:
        return self.why_not is None

    @property
    def speed_up(self) -> float:
        return 0.0 if self.forecast is None else self.forecast.speed_up

    @property
    def warnings(self) -> list[str]:
        return [check.evidence for check in self.checks if check.verdict == WARN]

    @property
    def reference(self) -> str:
        """The value for -d, where "demo" would mean the built-in draft."""
        return self.model.reference if self.model.reference != DEMO else str(self.model.path)


def candidates(
    target: GGUFFile,
    models: Iterable[LocalModel],
    use: PairUse,
    known: Mapping[Path, float] | None = None,
) -> list[DraftCandidate]:
    """Judge every local model except the target, fastest first. `known`: measured speed-ups of
    drafts, by real path."""
    own = {realpath(part) for part in target.parts}
    parameters = target.n_parameters
    found = [
        _candidate(target, parameters, model, use, (known or {}).get(Path(realpath(model.path))))
        for model in models
        if realpath(model.path) not in own and not _is_foreign_demo(target, model)
    ]
    return sorted(found, key=lambda found: (not found.usable, -found.speed_up, found.model.name))


def _is_foreign_demo(target: GGUFFile, model: LocalModel) -> bool:
    """Whether a model is of the built-in pair, which only writes stories, and the target is not."""
    if model.source != EMBEDDED:
        return False
    draft = readable(model.path)
    return draft is None or compare(VocabularyFacts(target), VocabularyFacts(draft)) is not None


def _candidate(
    target: GGUFFile, parameters: int, model: LocalModel, use: PairUse, measured: float | None
) -> DraftCandidate:
    if model.problem is not None:
        return DraftCandidate(model, model.problem.rstrip("."))
    # Most files are other targets, and can be rejected without reading them. A mixture of experts
    # may be larger but still cheaper, hence the factor.
    if model.parameters is not None and model.parameters > 2 * parameters:
        return DraftCandidate(model, "It is larger than the target")
    try:
        draft = read_gguf(model.path)
    except LocalspecError as error:
        return DraftCandidate(model, printable(str(error), 400).rstrip("."))
    checks = judge(target, draft, use)
    if (why_not := failure(checks)) is not None:
        return DraftCandidate(model, why_not, checks)
    expected = forecast(target, draft, checks, use)
    if measured is not None:
        expected = replace(expected, speed_up=measured, measured=True)
    return DraftCandidate(model, None, checks, expected)


def choose(target: Path, use: PairUse) -> Choice:
    """Choose the local draft with the highest speed-up, measured by `localspec doctor` or forecast.
    The choice is cached until files are added, changed or removed."""
    try:
        models = local_models()
        known = measured_speed_ups(target, use.options)
        facts = _facts(target, models, known, use)
    except OSError:  # the target is missing; opening it reports that
        return Choice(None, "the target cannot be read")
    cached = choices.get(facts)
    if cached is not None and isinstance(draft := cached.get("draft"), str | None):
        why = printable(str(cached.get("why")), 600)
        return Choice(None if draft is None else Path(draft), why)
    try:
        require_usable(target)
        file = read_gguf(target)
    except LocalspecError:
        return Choice(None, "the target cannot be read")
    choice = decide(file, models, known, use)
    if not choice.temporary:
        draft = None if choice.draft is None else str(choice.draft)
        choices.store(facts, {"draft": draft, "why": choice.why})
    return choice


def decide(
    target: GGUFFile, models: Sequence[LocalModel], known: Mapping[Path, float], use: PairUse
) -> Choice:
    """Choose among the given models. `known`: measured speed-ups, by real path."""
    # Forecasts for drafts made by `-d self` are too high, so only measured ones count.
    judged = [m for m in models if m.source != SELF_MADE or Path(realpath(m.path)) in known]
    found = candidates(target, judged, use, known)
    paying = [(one, gain) for one in found if (gain := one.forecast) is not None and gain.pays]
    for place, (one, gain) in enumerate(paying):
        if any((check.rule, check.verdict) == ("memory", WARN) for check in one.checks):
            continue
        evidence = f"expected {gain.speed_up:.1f}×; run 'localspec doctor' to measure it"
        if gain.measured:
            evidence = f"'localspec doctor' measured {gain.speed_up:.2f}×"
        why = f"using {one.model.name} as draft model ({evidence})"
        return Choice(one.model.path, why, temporary=place > 0)
    return Choice(None, _why_none(target, found), temporary=bool(paying))


def _why_none(target: GGUFFile, found: Sequence[DraftCandidate]) -> str:
    n_gram = "only the n-gram drafter is used"
    if found and (best := found[0].forecast) is not None:
        name = found[0].model.name
        if best.pays:
            return f"{n_gram}, as there is not enough memory for {name} as well"
        how = "'localspec doctor' measured no gain" if best.measured else "no gain is expected"
        return f"{n_gram}: of the models here, {name} fits best, but {how}"
    rejected = next((c for c in found if c.checks), None)
    if rejected is not None:
        why = rejected.why_not or ""
        return f"{n_gram}, as no model here fits; {rejected.model.name}: {why[:1].lower()}{why[1:]}"
    stem = target.path.stem.casefold()
    known = [entry for entry in catalog.load().entries if stem.startswith(entry.name)]
    drafts = max(known, key=lambda entry: len(entry.name)).drafts if known else []
    get = f"get one with 'localspec pull {drafts[0]}'" if drafts else "name one with --draft"
    return f"{n_gram}, as no smaller model here fits; {get}"


def _facts(
    target: Path, models: Sequence[LocalModel], known: Mapping[Path, float], use: PairUse
) -> dict[str, Any]:
    options = use.options
    opened = [str(adapter.path) for adapter in options.adapters]
    opened += [] if options.mmproj is None else [str(options.mmproj)]
    return {
        "target": [realpath(target), file_identity(target)],
        "models": [[str(m.path), m.size, size_and_time(m.path)[1], m.problem] for m in models],
        "known": [[str(draft), speed_up] for draft, speed_up in known.items()],
        "context": options.context,
        "kv": [options.kv_type_k, options.kv_type_v],
        "memory": available_memory()[1],
        "accelerated": use.accelerated,
        "kernels": options.kernels,
        "crosses": options.cross_vocabulary,
        "remote": bool(options.rpc),
        "extras": [[path, *size_and_time(Path(path))] for path in opened],
    }


def store_speed_up(target: Path, draft: Path, speed_up: float, options: ModelOptions) -> None:
    """Store a speed-up, replacing any earlier one of the pair."""
    identity = _conditions(target, options) | {"draft": file_identity(draft)}
    place = str(draft.absolute())
    speed_ups.store(identity, {"identity": identity, "draft": place, "speed_up": speed_up})


def measured_speed_ups(target: Path, options: ModelOptions) -> dict[Path, float]:
    """Speed-ups measured for this target with these options, by the real path of the draft. Leaves
    out drafts whose files have changed."""
    found = dict[Path, float]()
    try:
        wanted = _conditions(target, options)
    except OSError:
        return found
    for stored in speed_ups.all().values():
        # The record may be invalid, or the draft removed.
        with suppress(OSError, ValueError, KeyError, TypeError, RuntimeError):
            draft, speed_up = Path(stored["draft"]), float(stored["speed_up"])
            same = stored["identity"] == wanted | {"draft": file_identity(draft)}
            if same and math.isfinite(speed_up):
                found[draft.resolve()] = speed_up
    return found


def _conditions(target: Path, options: ModelOptions) -> dict[str, Any]:
    """Everything but the draft that the figures depend on, as JSON values."""
    return {
        "machine": machine(),
        "target": identity_with_adapters(target, options.adapters),
        "threads": [options.threads, options.draft_threads],
        "gpu_layers": [options.gpu_layers, options.draft_gpu_layers],
        "passes": [options.kernels, options.kv_type_k, options.kv_type_v],
    }
