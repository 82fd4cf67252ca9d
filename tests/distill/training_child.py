"""A short training, for killing: `python -m tests.distill.training_child TARGET OUT EPOCHS ROUNDS`.
Prints every step, and writes a checkpoint after each."""

import sys
from dataclasses import replace
from pathlib import Path

from localspec.distill import training
from localspec.distill.distill_request import DistillRequest
from localspec.distill.distillation import distill
from localspec.distill.training import TrainingProgress


def main(target: Path, out: Path, epochs: int, rounds: int) -> None:
    training.PAUSE = 0.0
    request = DistillRequest(target=target, shape="64x1x64", epochs=epochs, batch=96)
    request = replace(request, rate=3e-3, device="cpu", out=out, rounds=rounds)

    def report(progress: TrainingProgress) -> None:
        print(progress.step, progress.steps, flush=True)

    distill(request, report, lambda line: print(line, flush=True))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
