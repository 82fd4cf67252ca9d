"""Killing a training at random times: `python -m tests.distill.kills TARGET OUT EPOCHS ROUNDS` is
a short one."""

import os
import random
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from localspec.distill import folders, training
from localspec.distill.distill_request import DistillRequest
from localspec.distill.distillation import distill
from localspec.distill.training import TrainingProgress
from localspec.llama.model import Model
from localspec.llama.options import ModelOptions
from tests.distill.traces import trace_of
from tests.support.ggufs import tiny_llama

ANSWERS = 64


def prepare(home: Path) -> Path:
    """A target that localspec's kernels take, and a trace of it under LOCALSPEC_HOME; returns the
    target."""
    target = tiny_llama(home / "target.gguf", dim=64, heads=1, layers=1, ff=64)
    with Model(target, ModelOptions(context=64, threads=1)) as model:
        header = replace(folders.header_of(target, model.vocabulary), k=4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCALSPEC_HOME", str(home))
        trace_of(folders.folder_of(target, header.identity) / folders.TRACE, ANSWERS, header)
    return target


def train(home: Path, target: Path, out: Path, kills: int, seed: int) -> tuple[bytes, list[int]]:
    """Train to the end, with `kills` kills before: once in the on-policy round, else some steps
    after the start, and up to 0.05 s later, which may be during a checkpoint. Returns the file, and
    the last reported step of each process."""
    chance, seen, in_round = random.Random(seed), [], False
    for turn in range(kills + 1):
        command = [sys.executable, "-m", "tests.distill.kills"]
        process = subprocess.Popen(
            [*command, *map(str, (target, out))],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"LOCALSPEC_HOME": str(home), "OMP_NUM_THREADS": "1"},
            cwd=Path(__file__).parents[2],
        )
        assert process.stdout is not None
        assert process.stderr is not None
        step, after = -1, chance.randint(0, 3)
        with process.stdout, process.stderr:
            for line in process.stdout:
                if line[0].isdigit():
                    step = int(line.split()[0])
                    after -= 1
                elif line.startswith("On-policy") and not in_round:
                    in_round, after = True, -1
                if turn < kills and after < 0:
                    time.sleep(chance.random() * 0.05)
                    process.kill()
                    break
            errors = process.stderr.read()
        code = process.wait()
        seen.append(step)
        assert code == 0 or turn < kills, errors
    return out.read_bytes(), seen


def main(target: Path, out: Path) -> None:
    """Train, print every step, and write a checkpoint after each."""
    training.PAUSE = 0.0
    request = DistillRequest(target=target, shape="64x1x64", epochs=2, batch=96)
    request = replace(request, rate=3e-3, device="cpu", out=out, rounds=1)

    def report(progress: TrainingProgress) -> None:
        print(progress.step, progress.steps, flush=True)

    distill(request, report, lambda line: print(line, flush=True))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
