"""State of a training: plan, checkpoints and curve."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from localspec.bench.scaled_gguf import Shape
from localspec.distill.trace import Trace
from localspec.distill.training import batches, plan_steps, require_memory
from localspec.distill.training_run import CHECKPOINT, CURVE, Point, Run, TrainingPlan
from localspec.errors import LocalspecError, TraceError, UsageError
from tests.distill.traces import trace_of
from tests.support.patches import fail_with

pytestmark = pytest.mark.nightly

PLAN = TrainingPlan(
    kind="draft",
    begun_from="",
    shape={"width": 8},
    records=10,
    steps=6,
    epochs=2,
    tokens=64,
    rate=1e-3,
    seed=0,
    threads=1,
    device="cpu",
    longest=32,
)
POINT = Point(0, 0, 0.1, None, 2.0, 0.25, 0.5)


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch", reason="PyTorch is not installed: pip install '.[train]'")


@pytest.fixture
def state(torch: Any) -> dict[str, Any]:
    """A checkpoint."""
    return {"step": 3, "seconds": 1.5, "weights": {"a": torch.arange(4.0)}}


def started(folder: Path, plan: TrainingPlan = PLAN) -> Run:
    return Run.open(folder, plan).start_or_resume(plan)


def test_resumed_training_keeps_its_plan(tmp_path: Path, torch: Any, state: dict[str, Any]) -> None:
    run = started(tmp_path)
    run.save(state)
    grown = replace(PLAN, records=20, steps=12)  # after more recording
    again = started(tmp_path, grown)
    found = again.checkpoint()
    assert found is not None
    assert (again.plan, found["step"], found["seconds"]) == (PLAN, 3, 1.5)
    assert torch.equal(found["weights"]["a"], torch.arange(4.0))


def test_finished_training_is_repeated_only_with_more_records(tmp_path: Path) -> None:
    run = started(tmp_path)
    run.note(POINT)
    assert not Run.open(tmp_path, PLAN).is_finished(PLAN)
    run.finish()
    assert Run.open(tmp_path, PLAN).is_finished(PLAN)
    grown = replace(PLAN, records=20)
    run = Run.open(tmp_path, grown)
    assert not run.is_finished(grown)
    run = run.start_or_resume(grown)
    assert (run.plan, run.curve()) == (grown, [])
    run.finish()
    (run.folder / "run.json").unlink()  # as by a kill within `start_or_resume`
    assert not Run.open(tmp_path, grown).is_finished(grown)


@pytest.mark.parametrize("keep", [0, 10, -30])
def test_damaged_checkpoint_is_ignored(tmp_path: Path, state: dict[str, Any], keep: int) -> None:
    run = started(tmp_path)
    run.save(state)
    path = run.folder / CHECKPOINT
    path.write_bytes(path.read_bytes()[:keep])
    assert run.checkpoint() is None


@pytest.mark.parametrize("error", [OSError(28, "No space left"), RuntimeError("No space left")])
def test_full_disk_keeps_the_checkpoint(
    error: Exception,
    tmp_path: Path,
    torch: Any,
    state: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = started(tmp_path)
    run.save(state)
    monkeypatch.setattr(torch, "save", fail_with(error))
    with pytest.raises(TraceError, match=r"No space left.*same command again"):
        run.save(state | {"step": 4})
    assert (found := run.checkpoint()) is not None
    assert found["step"] == 3
    assert not list(run.folder.glob("*partial*"))


def test_curve_with_a_torn_line_and_repeated_steps(tmp_path: Path) -> None:
    run = started(tmp_path)
    points = [POINT, replace(POINT, step=2), replace(POINT, step=2, loss=1.0)]
    for point in points:
        run.note(point)
    with (run.folder / CURVE).open("a") as file:
        file.write('{"step": 3, "tok')
    assert run.curve() == [POINT, points[2]]


def test_too_little_memory_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = Shape(97, 64, 1, 64, 1, 1, 64, 64)
    require_memory(shape, shape.parameters, 96)
    monkeypatch.setattr("localspec.cgroups.memory_limits", lambda: [(1 << 20, 1 << 40)])
    with pytest.raises(LocalspecError, match=r"takes about .* of memory.*smaller --shape"):
        require_memory(shape, shape.parameters, 96)


def test_trace_without_answers_to_measure_with_is_refused(tmp_path: Path) -> None:
    trace_of(tmp_path / "t", 7)
    with Trace(tmp_path / "t") as trace, pytest.raises(UsageError, match=r"7 .* and 0 to measure"):
        plan_steps(trace, 64, 32, 1, 0)


def test_epoch_has_every_answer_once() -> None:
    lengths = [int(n) for n in np.random.Generator(np.random.PCG64(0)).integers(1, 90, 500)]
    first, second = (batches(lengths, 256, 7, n) for n in range(2))
    for found in (first, second):
        assert sorted(i for batch in found for i in batch) == list(range(500))
        padded = [max(lengths[i] for i in batch) * len(batch) for batch in found]
        assert max(padded) <= 256
        assert sum(lengths) > 0.85 * sum(padded)  # little of it is padding
    assert first == batches(lengths, 256, 7, 0) != second
    assert first != batches(lengths, 256, 8, 0)
    assert batches([300, 5], 256, 0, 0) in ([[0], [1]], [[1], [0]])
