"""Samples made up for tests."""

from __future__ import annotations

from dataclasses import replace

from localspec.bench.bound import Bound
from localspec.bench.machine import FileFacts, Machine
from localspec.bench.report import PairResults, Report
from localspec.bench.samples import DraftAccount, Foreseen, Sample


def sample(
    arm: str = "plain",
    suite: str = "story",
    prompt: str = "p0",
    *,
    tokens: int = 10,
    seconds: float = 1.0,
    temperature: float = 0.0,
    turn: int = 0,
    **more: object,
) -> Sample:
    made = Sample(
        arm=arm,
        suite=suite,
        prompt=prompt,
        temperature=temperature,
        turn=turn,
        tokens=tokens,
        seconds=seconds,
    )
    return replace(made, **more)  # type: ignore[arg-type]


NASTY = 'a|b <i>&"'


def a_report() -> Report:
    """Two suites, two temperatures, a sweep, predictions, a failed arm, names with signs."""
    samples = []
    for temperature in (0.0, 0.8):
        for suite in ("story", "copy"):
            for number in range(4):
                place = {"suite": suite, "prompt": f"p{number}", "temperature": temperature}
                samples.append(sample("plain", **place, token_ids=(1, 2, 3)))  # type: ignore[arg-type]
                for depth in (2, 3):
                    counts = {"passes": 4, "drafted": 12, "tested": 8, "accepted": 6}
                    arm = f"model depth {depth}"
                    samples.append(
                        sample(arm, **place, seconds=0.5, token_ids=(1, 2, 4), **counts)  # type: ignore[arg-type]
                    )
                chances = tuple((i / 20, i % 3 == 0) for i in range(20))
                samples.append(
                    sample(
                        NASTY,
                        **place,  # type: ignore[arg-type]
                        seconds=0.8,
                        passes=8,
                        predictions=chances,
                        calibration_seconds=0.25,
                        account=DraftAccount(0.3, 0.1),
                        foreseen=Foreseen(
                            steps=4,
                            tokens=8.0,
                            real_tokens=6,
                            seconds=0.4,
                            real_seconds=0.5,
                            plain_seconds=0.32,
                        ),
                    )
                )
    pair = PairResults(
        name=f"pair {NASTY}",
        target=FileFacts("t_a_b.gguf", 123_456_789, "ab" * 32),
        draft=None,
        samples=samples,
        commands={"plain": "localspec run --drafter none", NASTY: f"do {NASTY}"},
        dropped={"broken": "It <b>broke</b>."},
        bounds=[Bound("story", 2.5, 40, 1.6), Bound("copy", 2.5, 40, 1.6)],
        hardware=3.25,
        curve={1: 0.01, 2: 0.015, 4: 0.016},
    )
    machine = Machine(
        cpu="A CPU",
        cores=2,
        threads=2,
        memory=2**34,
        gpu=None,
        system="Linux",
        python="3.11",
        localspec="0.1.0",
        commit="c" * 40,
        llama_cpp_python="0.3.36",
    )
    return Report(
        machine=machine,
        command="localspec bench",
        date="2026-01-01T00:00:00+00:00",
        settings={"turns": 1, "seed": 1},
        pairs=[pair],
        notices=["Something to know."],
    )
