"""The files of a training run.

    run.json          the plan: fixed with the first step
    checkpoint.pt     step, seconds, weights, and the state of AdamW; replaced as a whole
    curve.jsonl       a line for each measurement
    round-N           the draft's own texts for epoch N: see `localspec.distill.distillation`

An interrupted training continues from its last checkpoint and ends with the same weights.
"""

from __future__ import annotations

import json
import pickle
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from localspec.distill.network import torch
from localspec.distill.trace import saving
from localspec.files import remove_abandoned, replacing, write_atomically
from localspec.identity import fingerprint

PLAN, CHECKPOINT, CURVE, DONE = "run.json", "checkpoint.pt", "curve.jsonl", "done"
ROUND = "round-"
Checkpoint = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPlan:
    """Everything on which the result depends, except the trace.

    Attributes:
        begun_from: `content_identity` of the draft that is fine-tuned, or empty.
        shape: of the draft, from `dataclasses.asdict`.
        records: number of the trace's answers that are used; it may have grown since.
        steps, tokens: steps of all epochs, and tokens per step.
        rate: the highest learning rate.
        threads, device: they determine the order of sums.
        longest: maximum tokens of prompt and answer; longer prompts lose their beginning.
        rounds: number of last epochs in which half of the steps are on the draft's texts.
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
    seed: int
    threads: int
    device: str
    longest: int
    rounds: int = 0
    vocabulary: str = ""

    @property
    def request_id(self) -> str:
        """A hexadecimal name of the request, independent of the number of answers."""
        facts = asdict(self)
        del facts["records"], facts["steps"]
        return fingerprint(facts)[:12]


@dataclass(frozen=True, slots=True)
class Point:
    """A measurement after some steps, answer tokens (counted each time) and seconds.

    `loss`: of training since the previous point, nats per token; None before the first step.
    `held_loss`, `agreement`, `acceptance`: on held-back answers; see `localspec.distill.network`.
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
    def open(cls, parent: Path, plan: TrainingPlan) -> Run:
        """The run of the same request, with its plan, or a new one. Nothing is written yet."""
        folder = parent / f"run-{plan.request_id}"
        known = _read_plan(folder / PLAN)
        return cls(folder, plan if known is None else known)

    def is_finished(self, plan: TrainingPlan) -> bool:
        return (self.folder / DONE).exists() and _read_plan(self.folder / PLAN) == plan

    def start_or_resume(self, plan: TrainingPlan) -> Run:
        """Continue the run if it is unfinished, otherwise start a new one. Raises TraceError."""
        with saving(self.folder):
            if (self.folder / PLAN).exists() and not (self.folder / DONE).exists():
                remove_abandoned(self.folder)
                return self
            run = Run(self.folder, plan)
            self._remove(CHECKPOINT, CURVE, PLAN, DONE)
            write_atomically(self.folder / PLAN, json.dumps(asdict(plan)), private=True)
        return run

    def checkpoint(self) -> Checkpoint | None:
        """The last checkpoint; None if it is missing or damaged."""
        path = self.folder / CHECKPOINT
        try:
            found: Checkpoint = torch.load(path, map_location="cpu", weights_only=True)
        except (OSError, EOFError, RuntimeError, pickle.UnpicklingError):
            return None
        return found

    def save(self, checkpoint: Checkpoint) -> None:
        """Replace the checkpoint; on a TraceError the previous one stays."""
        with saving(self.folder), replacing(self.folder / CHECKPOINT, private=True) as partial:
            torch.save(checkpoint, partial)

    def note(self, point: Point) -> None:
        with saving(self.folder), (self.folder / CURVE).open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(point)) + "\n")

    def curve(self) -> list[Point]:
        """All measurements; the last one of those that a resumed training repeated."""
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
                continue  # a line of a killed process
            found[point.step] = point
        return [found[step] for step in sorted(found)]

    def finish(self) -> None:
        """Mark the run as finished, and remove files that only a resumed training needs."""
        with saving(self.folder):
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
