"""What Linux's control groups, of containers and services, leave to this process."""

from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/")


def time_limit(root: Path = ROOT) -> int | None:
    """Whole cores whose time may be used, at least 1; None without a limit. With a thread more, the
    system stops all threads for a part of each period."""
    limits = []
    for group in _groups("cpu", root):
        pair = read_text(group / "cpu.max") or " ".join(
            read_text(group / f"cpu.cfs_{name}_us") for name in ("quota", "period")
        )
        quota, _, period = pair.partition(" ")
        if quota.isdecimal() and period.isdecimal():  # neither "max" nor -1
            limits.append(max(1, int(quota) // int(period)))
    return min(limits, default=None)


def available_memory() -> tuple[int, int]:
    """Available and total bytes of main memory, or those that a container allows."""
    import psutil  # slow to import

    memory = psutil.virtual_memory()
    free, whole = zip((memory.available, memory.total), *memory_limits(), strict=True)
    return min(free), min(whole)


def memory_limits(root: Path = ROOT) -> Iterator[tuple[int, int]]:
    """Bytes that are available within each limit, and the limit."""
    for group in _groups("memory", root):
        limit = read_text(group / "memory.max") or read_text(group / "memory.limit_in_bytes")
        used = read_text(group / "memory.current") or read_text(group / "memory.usage_in_bytes")
        if limit.isdecimal() and used.isdecimal():
            pages = dict(line.split() for line in read_text(group / "memory.stat").splitlines())
            names = ("active_file", "inactive_file")  # given up when memory is needed
            cached = sum(int(pages.get(f"total_{name}", pages.get(name, "0"))) for name in names)
            yield max(0, int(limit) - max(0, int(used) - cached)), int(limit)


def _groups(controller: str, root: Path) -> Iterator[Path]:
    """Folders of this process's group and those above it, of both versions. Inside a container the
    path may be that of its host."""
    for line in read_text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            mount = root / "sys/fs/cgroup" / (controller if controllers else "")
            group = mount / path.lstrip("/")
            yield from (one for one in (group, *group.parents) if one.is_relative_to(mount))


def read_text(file: Path) -> str:
    """The text of one of the system's files, "" if there is none."""
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
