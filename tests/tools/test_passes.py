"""What `tools.passes` takes for a pass, and its tables."""

import sys
from pathlib import Path

import pytest

from localspec.gguf.reader import read_gguf
from tests.cli.process import finished
from tests.support.ggufs import tiny_llama
from tools.made_moe import EXPERTS, USED, mix
from tools.passes import Reader, Sample, typical

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[2]


def test_passes_without_their_cores_are_excluded() -> None:
    had = [Sample(seconds, 0.97) for seconds in (1.0, 2.0, 3.0)]
    assert typical([*had, Sample(9.0, 0.6), Sample(8.0, 0.5)]) == 2.0
    assert typical([Sample(4.0, 0.5)]) == 4.0
    assert typical([Sample(4.0, 0.2), Sample(5.0, 0.9)]) == 5.0


def test_mixture_reads_active_experts(tmp_path: Path) -> None:
    dense = tiny_llama(tmp_path / "dense.gguf")
    mix(dense, tmp_path / "mixed.gguf")
    one, all_ = (Reader(read_gguf(path)) for path in (dense, tmp_path / "mixed.gguf"))
    copied = sum(t.size for t in read_gguf(dense).tensors if ".ffn_" in t.name and t.size > 999)
    router = sum(t.size for t in read_gguf(tmp_path / "mixed.gguf").tensors if "_inp" in t.name)
    assert all_.experts
    assert not one.experts
    assert all_.bytes - one.bytes == pytest.approx((USED - 1) * copied + router)
    assert read_gguf(tmp_path / "mixed.gguf").own_integer("expert_count") == EXPERTS


def test_tables() -> None:
    command = (sys.executable, "-m", "tools.passes", "demo", "--arms", "off,auto", "--loads", "1")
    sizes = ("--sizes", "1,4", "--prompts", "64", "--contexts", "32", "--rounds", "2")
    tables = finished(*sizes, command=command, cwd=ROOT).succeeded()
    rows = [line.split("|")[1].strip() for line in tables.splitlines() if line.startswith("| ")]
    assert rows == ["kernels", "off", "auto"] * 2
    assert "of 24 passes had their cores" in tables
