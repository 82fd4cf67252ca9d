"""Tokens per second while other processes compute: `-t auto` beside fixed counts of threads.

    python -m tools.contention MODEL.gguf [--loads 0 1 2] [--seconds 4] [--rounds 2] [--nice N]
        [--first]

Every arm answers the same prompt plainly, in turns, in a process of its own; beside it run so many
processes that do nothing but compute, at the priority that `--nice` says. Then: how long `auto`
takes to be back at full speed after a load has ended, and what two localspec processes at once have
each. With `--first` each answer is the first one of a process that has never run without them, in a
cache folder of its own, and that is all.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import mean, median

PROMPT = "Write a long story about a lighthouse keeper who finds a map."
BUSY = "while True: pass"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("model", type=Path)
    options.add_argument("--threads", nargs="+", default=["auto", "1", "2"])
    options.add_argument("--loads", nargs="+", type=int, default=[0, 1, 2])
    options.add_argument("--seconds", type=float, default=4.0)
    options.add_argument("--rounds", type=int, default=2)
    options.add_argument("--nice", type=int, default=0)
    options.add_argument("--first", action="store_true")
    options.add_argument("--answer", help=argparse.SUPPRESS)
    said = options.parse_args()
    if said.answer is not None:
        answer(said.model, said.answer)
        return
    if said.first:
        first_answers(said)
        return
    arms = {threads: Arm(said.model, threads) for threads in said.threads}
    try:
        for load in said.loads:
            speeds: dict[str, list[float]] = {threads: [] for threads in arms}
            for _ in range(said.rounds):
                for threads, arm in arms.items():
                    with busy(load, said.nice):
                        speeds[threads].append(speed(arm.run(said.seconds)))
            tell(load, speeds)
        arm = arms["auto"]
        full = speed(arm.run(said.seconds)[-40:])
        with busy(1, said.nice):
            arm.start(said.seconds + 4.0)
            time.sleep(said.seconds)
        ended = time.monotonic()
        print(f"back at full speed after {back(arm.result(), ended, full):.2f} s", flush=True)
        second = Arm(said.model, "auto")
        alone = speed(arm.run(said.seconds))
        for one in (arm, second):
            one.start(2 * said.seconds)
        parts = [speed(one.result()) / alone for one in (arm, second)]
        print(f"two at once: each {parts[0]:.2f} and {parts[1]:.2f} of one alone ({alone:.1f})")
        second.close()
    finally:
        for arm in arms.values():
            arm.close()


def first_answers(said: argparse.Namespace) -> None:
    """Of processes that begin beside a load."""
    for load in said.loads:
        speeds: dict[str, list[float]] = {threads: [] for threads in said.threads}
        for _ in range(said.rounds):
            for threads, found in speeds.items():
                with busy(load, said.nice), tempfile.TemporaryDirectory() as home:
                    arm = Arm(said.model, threads, {"LOCALSPEC_HOME": home})
                    found.append(speed(arm.run(said.seconds)))
                    arm.close()
        tell(load, speeds)


def tell(load: int, speeds: Mapping[str, Sequence[float]]) -> None:
    told = ", ".join(f"-t {name} {mean(found):.1f}" for name, found in speeds.items())
    print(f"{load} other processes, tok/s: {told}", flush=True)


class Arm:
    """A localspec process that answers for as long as it is told to."""

    def __init__(
        self, model: Path, threads: str, variables: Mapping[str, str] | None = None
    ) -> None:
        command = [sys.executable, __file__, str(model), "--answer", threads]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | (variables or {}),
        )
        if variables is None:
            self.run(1.0)  # loads, and meets an idle machine

    def start(self, seconds: float) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()

    def result(self) -> list[float]:
        """When each token came, on the clock that all processes share."""
        assert self._process.stdout is not None
        found: list[float] = json.loads(self._process.stdout.readline())
        return found

    def run(self, seconds: float) -> list[float]:
        self.start(seconds)
        return self.result()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def answer(model: Path, threads: str) -> None:
    """The process of an arm: answers as often as there are lines with seconds."""
    import localspec
    from localspec import Drafting, ModelOptions, SamplingParams
    from localspec.llama.options import thread_count

    options = ModelOptions(context=2048, threads=thread_count(threads))
    with localspec.load(model, draft="none", options=options) as engine:
        for line in sys.stdin:
            end, when = time.monotonic() + float(line), list[float]()
            while time.monotonic() < end:
                stream = engine.stream(
                    PROMPT,
                    max_tokens=512,
                    sampling=SamplingParams(temperature=0.8),
                    drafting=Drafting(drafter="none"),
                )
                with stream:
                    for chunk in stream:
                        when += [time.monotonic()] * len(chunk.token_ids)
                        if when[-1] > end:
                            break
            print(json.dumps(when), flush=True)


@contextmanager
def busy(count: int, nice: int) -> Iterator[None]:
    """So many processes that compute, at such a priority."""
    program = f"import os; os.nice({nice})\n{BUSY}"
    others = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(count)]
    time.sleep(0.2 if count else 0.0)
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def speed(when: list[float]) -> float:
    return (len(when) - 1) / (when[-1] - when[0]) if len(when) > 1 else 0.0


def back(when: list[float], ended: float, full: float) -> float:
    """Seconds after the end of a load from which on tokens come at 0.85 of full speed."""
    gaps = [(b, b - a) for a, b in itertools.pairwise(when)]
    for number, (at, _) in enumerate(gaps):
        following = [gap for _, gap in gaps[number : number + 8]]
        if at > ended and len(following) == 8 and median(following) < 1.0 / (0.85 * full):
            return at - ended
    return float("inf")


if __name__ == "__main__":
    main()
