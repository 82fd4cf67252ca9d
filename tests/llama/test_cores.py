"""Cores and memory for passes, in files as Linux, Docker and systemd show them."""

from pathlib import Path

import pytest

from localspec.cgroups import memory_limits, time_limit
from localspec.llama.cores import fast_cores

SIBLINGS = {f"cpu{n}/topology/thread_siblings_list": f"{n & ~1}-{n | 1}" for n in range(4)}
SLOW = {f"cpu{n}/topology/thread_siblings_list": str(n) for n in range(4, 8)}
HYBRID = SIBLINGS | SLOW | {"../../cpu_core/cpus": "0-3"}  # two cores of Intel, four slow ones
BIG_LITTLE = (
    SIBLINGS | SLOW | {f"cpu{n}/cpu_capacity": "414" if n < 4 else "1024" for n in range(8)}
)
V1 = "5:memory:/docker/a\n4:cpu,cpuacct:/docker/a\n1:name=systemd:/docker/a"


def system(root: Path, folder: str, files: dict[str, str]) -> Path:
    for name, text in files.items():
        file = (root / folder / name).resolve()
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
    return root


@pytest.mark.parametrize(
    ("files", "allowed", "cores"),
    [
        pytest.param(SIBLINGS, range(4), 2, id="equal"),
        pytest.param(HYBRID, range(8), 2, id="hybrid"),
        pytest.param(HYBRID, [0, 4, 5], 1, id="some of a hybrid"),
        pytest.param(BIG_LITTLE, range(8), 4, id="big and little"),
    ],
)
def test_passes_use_fast_cores(
    files: dict[str, str], allowed: list[int], cores: int, tmp_path: Path
) -> None:
    assert fast_cores(allowed, system(tmp_path, "sys/devices/system/cpu", files)) == cores


@pytest.mark.parametrize(
    ("group", "files", "cores"),
    [
        ("0::/", {"cpu.max": "200000 100000"}, 2),
        ("0::/", {"cpu.max": "765000 100000"}, 7),
        ("0::/", {"cpu.max": "50000 100000"}, 1),
        ("0::/a/b", {"a/cpu.max": "300000 100000"}, 3),
        ("0::/", {"cpu.max": "max 100000"}, None),
        (V1, {"cpu/cpu.cfs_quota_us": "400000", "cpu/cpu.cfs_period_us": "100000"}, 4),
        (V1, {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
    ],
)
def test_containers_limit_time(
    group: str, files: dict[str, str], cores: int | None, tmp_path: Path
) -> None:
    system(tmp_path, "proc/self", {"cgroup": group})
    assert time_limit(system(tmp_path, "sys/fs/cgroup", files)) == cores


@pytest.mark.parametrize(
    ("group", "files"),
    [
        ("0::/a", {"a/memory.max": "max", "memory.max": "100", "memory.current": "90"}),
        (V1, {"memory/memory.limit_in_bytes": "100", "memory/memory.usage_in_bytes": "90"}),
    ],
)
def test_cached_files_leave_memory(group: str, files: dict[str, str], tmp_path: Path) -> None:
    system(tmp_path, "proc/self", {"cgroup": group})
    stat = "anon 20\nactive_file 30\ninactive_file 40"
    files |= {"memory.stat": stat, "memory/memory.stat": "active_file 0\ntotal_active_file 70"}
    assert list(memory_limits(system(tmp_path, "sys/fs/cgroup", files))) == [(80, 100)]
