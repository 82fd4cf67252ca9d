"""Samples made up for tests."""

import json
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from localspec.bench.machine import FileFacts, Machine
from localspec.bench.report import PairResults, Report
from localspec.bench.samples import PeerSetup, Sample


def sample(arm: str = "plain", suite: str = "story", prompt: str = "p0", **more: Any) -> Sample:
    """A sample of ten tokens in a second, unless `more` says otherwise."""
    facts: dict[str, Any] = {"tokens": 10, "seconds": 1.0, **more}
    return Sample(arm=arm, suite=suite, prompt=prompt, **facts)


def peer_setup(target: Path, **more: Any) -> PeerSetup:
    """How a peer opens a model: with two threads, and numbers for pieces."""
    known: dict[str, Any] = {"threads": 2, "context": 256, "piece": lambda token: b"%d " % token}
    return PeerSetup(target=target, **known | more)


def executable(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


def read(text: str) -> Report:
    data = json.loads(text)
    assert (data.pop("format"), "Student's t" in data.pop("interval")) == (6, True)
    for pair in data["pairs"]:
        assert pair.pop("summary")
    return TypeAdapter(Report).validate_python(data)


NASTY = 'a|b <i>&"'


def a_report() -> Report:
    """A report with two suites, two temperatures, a sweep, a failed arm and special characters."""
    samples = []
    for temperature, suite, number in product((0.0, 0.8), ("story", "copy"), range(4)):
        made = partial(sample, suite=suite, prompt=f"p{number}", temperature=temperature)
        samples.append(made("plain", token_ids=(1, 2, 3)))
        half = partial(made, seconds=0.5, passes=4, drafted=12, tested=8, accepted=6)
        samples += [half(f"model depth {n}", token_ids=(1, 2, 4)) for n in (2, 3)]
        samples.append(made(NASTY, seconds=0.8, passes=8, calibration_seconds=0.25))
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
    )
