"""One training on disk.

    run.json          the plan: fixed with the first step
    checkpoint.npz    step, weights, and the optimizer's two means; replaced as a whole
    curve.jsonl       a line for each measurement
    round-N           the draft's own texts for epoch N: see `localspec.distill.rounds`

A training that is killed goes on from its last checkpoint and ends with the same weights.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from localspec.errors import TraceError
from localspec.files import remove_abandoned, replacing, write_atomically
from localspec.identity import fingerprint

PLAN, CHECKPOINT, CURVE, DONE = "run.json", "checkpoint.npz", "curve.jsonl", "done"
ROUND = "round-"
Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPlan:
    """Everything that the outcome depends on, but for the trace.

    Attributes:
        begun_from: `content_identity` of the draft that is tuned, or empty.
        shape: of the draft, as `dataclasses.asdict` gives it.
        records: how many of the trace's answers count; it may have grown since.
        steps, tokens: of all epochs, and of a step.
        rate: the highest learning rate.
        hard: the share of the cross entropy in the loss.
        threads, device: others sum in another order.
        longest: tokens of prompt and answer; the prompt loses its beginning.
        rounds: the last epochs, so many, are half on texts of the draft's own.
        vocabulary: fingerprint of the target's tokens that the draft has, empty for all.
    """

    kind: str
    begun_from: str
    shape: dict[str, Any]
    records: int
    steps: int
    epochs: int
    tokens: int
    rate: float
    hard: float
    seed: int
    threads: int
    device: str
    longest: int
    rounds: int = 0
    vocabulary: str = ""

    @property
    def asked(self) -> str:
        """A name for the request, hexadecimal: without what the trace decides."""
        facts = asdict(self)
        del facts["records"], facts["steps"]
        return fingerprint(facts)[:12]


@dataclass(frozen=True, slots=True)
class State:
    """What there is after `step` steps in `seconds`. `tensors`: by part and name, "weights/a"; the
    other parts are the optimizer's."""

    step: int
    seconds: float
    tensors: Mapping[str, Array]

    def part(self, name: str) -> dict[str, Array]:
        """Its tensors by their own names; empty where there are none."""
        begin = f"{name}/"
        named = ((key, values) for key, values in self.tensors.items() if key.startswith(begin))
        return {key.removeprefix(begin): values for key, values in named}


@dataclass(frozen=True, slots=True)
class Point:
    """One measurement after so many steps, tokens of answers, each time they are seen, and seconds.
    `loss`: of training since the point before, nats a token; None before the first step.
    `held_loss`, `agreement`, `acceptance`: on held-back answers; see `localspec.distill.losses`.
    `depths`: agreement by head, the nearest first; empty for a draft."""

    step: int
    tokens: int
    seconds: float
    loss: float | None
    held_loss: float
    agreement: float
    acceptance: float
    depths: tuple[float, ...] = ()


class Run:
    def __init__(self, folder: Path, plan: TrainingPlan) -> None:
        self.folder, self.plan = folder, plan

    @classmethod
    def opened(cls, parent: Path, plan: TrainingPlan) -> Run:
        """That of the same request with its plan, else one of this plan. Nothing is written yet."""
        folder = parent / f"run-{plan.asked}"
        known = _read_plan(folder / PLAN)
        return cls(folder, plan if known is None else known)

    def finished_with(self, plan: TrainingPlan) -> bool:
        return (self.folder / DONE).exists() and self.plan == plan

    def begun(self, plan: TrainingPlan) -> Run:
        """The unfinished run, to be continued; else a new one. Raises TraceError."""
        with written(self.folder):
            if (self.folder / PLAN).exists() and not (self.folder / DONE).exists():
                remove_abandoned(self.folder)
                return self
            run = Run(self.folder, plan)
            self._remove(CHECKPOINT, CURVE, PLAN, DONE)
            write_atomically(self.folder / PLAN, json.dumps(asdict(plan)), private=True)
        return run

    def state(self) -> State | None:
        """The last checkpoint; None where there is none, or it is damaged."""
        try:
            with (
                (self.folder / CHECKPOINT).open("rb") as file,
                np.load(file, allow_pickle=False) as stored,
            ):
                found = dict(stored)
            return State(int(found.pop("step")), float(found.pop("seconds")), found)
        except (OSError, ValueError, KeyError, zipfile.BadZipFile, EOFError):
            return None

    def keep(self, state: State) -> None:
        """Replace the checkpoint; where that raises TraceError, the one before stays."""
        arrays: dict[str, Any] = {"step": state.step, "seconds": state.seconds, **state.tensors}
        with (
            written(self.folder),
            replacing(self.folder / CHECKPOINT, private=True) as partial,
            partial.open("wb") as file,
        ):
            np.savez(file, **arrays)

    def note(self, point: Point) -> None:
        with written(self.folder), (self.folder / CURVE).open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(point)) + "\n")

    def curve(self) -> list[Point]:
        """All measurements; of those that a resumed training repeated, the last."""
        found: dict[int, Point] = {}
        try:
            lines = (self.folder / CURVE).read_text(encoding="utf-8").splitlines()
        except OSError:
            return []
        for line in lines:
            try:
                stored = json.loads(line)
                point = Point(**{**stored, "depths": tuple(stored.get("depths", ()))})
            except (ValueError, TypeError, AttributeError):
                continue  # a process was killed over it
            found[point.step] = point
        return [found[step] for step in sorted(found)]

    def finish(self) -> None:
        """Mark it finished; what only a resumed training needs is removed."""
        with written(self.folder):
            (self.folder / DONE).touch()
            self._remove(CHECKPOINT)

    def _remove(self, *names: str) -> None:
        for path in (*(self.folder / name for name in names), *self.folder.glob(f"{ROUND}*")):
            path.unlink(missing_ok=True)


def _read_plan(path: Path) -> TrainingPlan | None:
    try:
        return TrainingPlan(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


@contextmanager
def written(folder: Path) -> Iterator[None]:
    """Turns failures of the disk into a TraceError."""
    try:
        yield
    except OSError as error:
        raise TraceError(
            f"The training cannot be kept in {folder}: {error.strerror or error}. The last "
            "checkpoint stays. Make room, and run the same command again to continue."
        ) from None
