"""The local draft models for a target, best first, and why the others are none."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from localspec.errors import LocalspecError
from localspec.gguf.file import GGUFFile
from localspec.gguf.reader import read_gguf
from localspec.gguf.vocabularies import VocabularyFacts, compare
from localspec.hub.local import LocalModel
from localspec.hub.places import EMBEDDED
from localspec.hub.reference import DEMO
from localspec.pairing.forecast import Forecast, forecast
from localspec.pairing.pair_memory import PairUse
from localspec.pairing.rules import PairVerdict, judge_files
from localspec.text import printable


@dataclass(frozen=True, slots=True)
class DraftCandidate:
    """A local model beside a target.

    Attributes:
        verdict: None where it was not worth making one.
        forecast: None where the pair is not usable.
        why_not: why it is no draft for this target, a sentence without full stop.
    """

    model: LocalModel
    verdict: PairVerdict | None
    forecast: Forecast | None
    why_not: str | None

    @property
    def usable(self) -> bool:
        return self.why_not is None

    @property
    def speed_up(self) -> float:
        return 0.0 if self.forecast is None else self.forecast.speed_up

    @property
    def reference(self) -> str:
        """What to type after -d, where "demo" means the draft of the embedded pair."""
        return self.model.reference if self.model.reference != DEMO else str(self.model.path)


def candidates(
    target: GGUFFile, models: Iterable[LocalModel], use: PairUse
) -> list[DraftCandidate]:
    """Judge every local model but the target itself; the most promising come first."""
    own = {real_path(part) for part in target.parts}
    parameters = target.n_parameters
    found = [
        _candidate(target, parameters, model, use)
        for model in models
        if real_path(model.path) not in own and not _is_foreign_demo(target, model)
    ]
    return sorted(found, key=lambda each: (not each.usable, -each.speed_up, each.model.name))


def _is_foreign_demo(target: GGUFFile, model: LocalModel) -> bool:
    """Whether it is of the embedded pair, and the target is not: its world of stories is small."""
    if model.source != EMBEDDED:
        return False
    try:
        draft = read_gguf(model.path)
    except LocalspecError:
        return True
    return compare(VocabularyFacts(target), VocabularyFacts(draft)).different is not None


def _candidate(
    target: GGUFFile, parameters: int, model: LocalModel, use: PairUse
) -> DraftCandidate:
    if model.problem is not None:
        return DraftCandidate(model, None, None, model.problem.rstrip("."))
    # Most files here are other targets; they need not be read to be turned down. A mixture of
    # experts may be larger and cheaper all the same, so it gets some leeway.
    if model.parameters is not None and model.parameters > 2 * parameters:
        return DraftCandidate(model, None, None, "It is larger than the target")
    try:
        draft = read_gguf(model.path)
    except LocalspecError as error:
        return DraftCandidate(model, None, None, printable(str(error), 400).rstrip("."))
    verdict = judge_files(target, draft, use)
    if not verdict.usable:
        return DraftCandidate(model, verdict, None, verdict.why_not)
    return DraftCandidate(model, verdict, forecast(target, draft, verdict, use), None)


def real_path(path: Path) -> Path:
    """Without links; as it is where these lead in a circle."""
    try:
        return path.resolve()
    except (OSError, RuntimeError):
        return path
