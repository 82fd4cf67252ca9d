"""A pair measured with peers: who takes part, and what is said of who does not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from localspec import ModelOptions
from localspec.bench.benchmark import BenchPair, BenchSettings, measure
from localspec.bench.peers import Peers
from localspec.bench.report import PairResults
from localspec.bench.suites import load_suites

pytestmark = pytest.mark.nightly


def test_peers_that_do_not_work_are_left_out_with_their_reasons() -> None:
    python = Path(sys.executable)
    settings = BenchSettings(
        # One thread: two would spin for each other wherever the tests share a core.
        options=ModelOptions(context=256, threads=1),
        prompts=load_suites(suites=["story"], per_suite=1),
        temperatures=[0.0],
        groups=["plain"],
        turns=1,
        max_tokens=4,
        seed=1,
        peers=Peers(llama_server=python, configurations=("plain",), ik_python=python),
    )
    results: list[PairResults] = []
    measure(BenchPair(name="embedded"), settings, results, lambda _: None)
    (report,) = results
    assert "ended while it started" in report.dropped["llama-server plain"]
    assert "No module named 'ik_llama_cpp'" in report.dropped["ik_llama-cpp-python"]
    arms = {sample.arm for sample in report.samples}
    assert "llama-cpp-python plain" in arms
