"""A pair measured beside a peer that fails."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from localspec import ModelOptions
from localspec.bench.benchmark import BenchPair, BenchSettings, measure
from localspec.bench.peers import Peers
from localspec.bench.suites import load_suites

pytestmark = pytest.mark.nightly


def test_a_peer_that_does_not_start_is_left_out_with_its_reason() -> None:
    settings = BenchSettings(
        # One thread: two would spin for each other wherever the tests share a core.
        options=ModelOptions(context=256, threads=1),
        prompts=load_suites(suites=["story"], per_suite=1),
        temperatures=[0.0],
        groups=["plain"],
        turns=1,
        max_tokens=4,
        seed=1,
        peers=Peers(Path(sys.executable), ("plain",)),
    )
    report = measure(BenchPair(name="embedded"), settings, lambda _: None)
    assert "ended while it started" in report.dropped["llama-server plain"]
    assert {sample.arm for sample in report.samples} == {"plain"}
