"""The draft models on this machine for a target, best first, and why the others are none."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from localspec.errors import LocalspecError
from localspec.gguf.extras import NO_EXTRAS, Extras
from localspec.gguf.file import GGUFFile
from localspec.gguf.reader import read_gguf
from localspec.gguf.vocabularies import VocabularyFacts, compare
from localspec.hub.local import LocalModel
from localspec.hub.places import EMBEDDED
from localspec.hub.reference import DEMO
from localspec.pairing.forecast import Forecast, forecast
from localspec.pairing.rules import PairVerdict, judge_files
from localspec.text import printable


@dataclass(frozen=True, slots=True)
class DraftCandidate:
    """A local model beside a target.

    Attributes:
        verdict: of the pair; None where it was not worth making one.
        forecast: what to expect, None where the pair is not usable.
        why_not: why it is no draft for this target, a sentence without full stop; None if it is.
    """

    model: LocalModel
    verdict: PairVerdict | None
    forecast: Forecast | None
    why_not: str | None

    @property
    def usable(self) -> bool:
        return self.why_not is None

    @property
    def reference(self) -> str:
        """What to type after -d, where "demo" means the draft of the embedded pair."""
        return self.model.reference if self.model.reference != DEMO else str(self.model.path)


def candidates(
    target: GGUFFile,
    models: Iterable[LocalModel],
    *,
    context: int | None = None,
    accelerated: bool = False,
    device_free: int = 0,
    through_text: bool = True,
    remote: bool = False,
    extras: Extras = NO_EXTRAS,
) -> list[DraftCandidate]:
    """Judge every local model as a draft for the target; the most promising come first.

    Args:
        models: files of the target itself among them are passed over, and so is the embedded pair
            where the target has another vocabulary than its own.
        context: as for `judge`.
        accelerated: whether the models run on a GPU.
        device_free: bytes that it has left in memory of its own.
        through_text: whether drafts of another vocabulary may be used.
        remote: whether the target's layers are on other machines, and the drafts here.
        extras: adapters and a projector that are opened with them.
    """
    own = {_real(part) for part in target.parts}
    parameters = target.n_parameters
    found = [
        _candidate(
            target,
            parameters,
            model,
            context,
            accelerated,
            device_free,
            through_text,
            remote,
            extras,
        )
        for model in models
        if _real(model.path) not in own and not _is_foreign_demo(target, model)
    ]
    return sorted(found, key=_order)


def _is_foreign_demo(target: GGUFFile, model: LocalModel) -> bool:
    """Whether it is of the embedded pair, and the target is not: its small vocabulary and small
    world of stories serve each other alone, through text least of all."""
    if model.source != EMBEDDED:
        return False
    try:
        draft = read_gguf(model.path)
    except LocalspecError:
        return True
    vocabularies = VocabularyFacts(target), VocabularyFacts(draft)
    return compare(*vocabularies).different is not None


def _order(candidate: DraftCandidate) -> tuple[bool, float, str]:
    speed = candidate.forecast.speed_up if candidate.forecast is not None else 0.0
    return not candidate.usable, -speed, candidate.model.name


def _candidate(
    target: GGUFFile,
    parameters: int,
    model: LocalModel,
    context: int | None,
    accelerated: bool,
    device_free: int,
    through_text: bool,
    remote: bool,
    extras: Extras,
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
    verdict = judge_files(
        target,
        draft,
        context=context,
        through_text=through_text,
        device_free=device_free,
        remote=remote,
        extras=extras,
    )
    if not verdict.usable:
        return DraftCandidate(model, verdict, None, verdict.why_not)
    expected = forecast(target, draft, verdict, accelerated=accelerated, remote=remote)
    return DraftCandidate(model, verdict, expected, None)


def _real(path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError):
        return path
