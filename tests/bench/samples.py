"""Samples made up for tests."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from pydantic import TypeAdapter

from localspec.bench.machine import FileFacts, Machine
from localspec.bench.report import PairResults, Report
from localspec.bench.samples import Sample


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


def executable(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


def read(text: str) -> Report:
    data = json.loads(text)
    assert (data.pop("format"), "Student's t" in data.pop("interval")) == (4, True)
    for pair in data["pairs"]:
        assert pair.pop("summary")
    return TypeAdapter(Report).validate_python(data)


NASTY = 'a|b <i>&"'


def a_report() -> Report:
    """A report with two suites, two temperatures, a sweep, a failed arm and special characters."""
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
                samples.append(
                    sample(
                        NASTY,
                        **place,  # type: ignore[arg-type]
                        seconds=0.8,
                        passes=8,
                        calibration_seconds=0.25,
                    )
                )
    pair = PairResults(
        name=f"pair {NASTY}",
        target=FileFacts("t_a_b.gguf", 123_456_789, "ab" * 32),
        draft=None,
        samples=samples,
        commands={"plain": "localspec run --drafter none", NASTY: f"do {NASTY}"},
        dropped={"broken": "It <b>broke</b>."},
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
