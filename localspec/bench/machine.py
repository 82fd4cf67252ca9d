"""The conditions of a measurement: machine, versions, files."""

import os
import platform
import subprocess
from dataclasses import dataclass
from pathlib import Path

import psutil

from localspec import __version__
from localspec.identity import machine, sha256_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The machine of a benchmark. `gpu`: names of the GPUs that llama.cpp can use; `cores`:
    physical; `memory`: bytes; `commit`: of localspec's checkout, with a + if files are modified."""

    cpu: str
    cores: int
    threads: int
    memory: int
    gpu: str | None
    system: str
    python: str
    localspec: str
    commit: str | None
    llama_cpp_python: str


@dataclass(frozen=True, slots=True)
class FileFacts:
    path: str
    size: int
    sha256: str


def this_machine(threads: int | None) -> Machine:
    """This machine; `threads`: of passes, None for the default."""
    from localspec.llama import cores, library  # only this and `_gpu` need llama.cpp

    here = machine()
    return Machine(
        cpu=here["processor"],
        cores=here["cores"] or os.cpu_count() or 1,
        threads=threads or cores.default_threads(),
        memory=psutil.virtual_memory().total,
        gpu=_gpu(),
        system=platform.platform(),
        python=platform.python_version(),
        localspec=__version__,
        commit=_commit(),
        llama_cpp_python=library.version().partition(";")[0],
    )


def file_facts(path: Path) -> FileFacts:
    """Read the whole file. Raises OSError: it cannot be read."""
    return FileFacts(str(path), path.stat().st_size, sha256_of(path))


def _gpu() -> str | None:
    from localspec.llama import devices

    usable = [device.description for device in devices.devices() if device.takes_layers]
    return ", ".join(usable) or None


def _commit() -> str | None:
    folder = Path(__file__).resolve().parents[2]
    # An installed package may be inside another repository.
    if not (folder / ".git").exists():
        return None
    # Without a lock file, which would stay where the disk is full.
    git = ["git", "--no-optional-locks", "-C", str(folder)]
    command = [*git, "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
