"""llama-cpp-python with a backend that its packages come without, for `rpc_build`, `vulkan_build`.

ggml is built from the source archive of the installed version, and put into

    FOLDER/python/llama_cpp            a copy of the installed package, with these libraries
    FOLDER/python/llama_cpp/lib        its libraries, ggml's exchanged, and programs of that build

for programs with FOLDER/python first on PYTHONPATH. LLAMA_CPP_LIB_PATH would not do: the package
loads its own libggml all the same, and two copies of ggml have two registries of devices.

Needs cmake and a C++ compiler.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

PACKAGE = "llama-cpp-python"
PLACE = Path(__file__).parents[1] / "build"
_FLAGS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=ON",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_SERVER=OFF",
    # The libraries find each other where they lie.
    "-DCMAKE_INSTALL_RPATH=$ORIGIN",
    "-DCMAKE_BUILD_WITH_INSTALL_RPATH=ON",
)


def options(description: str, folder: Path) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", default=folder)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    return parser


def is_built(folder: Path) -> bool:
    """Whether a folder has the build of the installed version."""
    marker = folder / "version"
    return marker.is_file() and marker.read_text(encoding="utf-8") == version(PACKAGE)


def make(folder: Path, flags: Sequence[str], jobs: int, programs: Sequence[str] = ()) -> None:
    """Build what the folder has not yet; SystemExit where a command fails.

    Args:
        flags: for cmake, those that choose the backend.
        jobs: compilers at a time.
        programs: targets beside the libraries.
    """
    folder = folder.resolve()
    if is_built(folder):
        print(f"{folder} has it already; remove it to build it anew.")
        return
    with tempfile.TemporaryDirectory(prefix="localspec-build-") as place:
        archive = fetch(Path(place))
        with tarfile.open(archive) as packed:
            packed.extractall(place, filter="data")
        source = Path(place, archive.name.removesuffix(".tar.gz"), "vendor", "llama.cpp")
        built = Path(place) / "build"
        _run("cmake", "-S", str(source), "-B", str(built), *_FLAGS, *flags)
        _run("cmake", "--build", str(built), "-j", str(jobs), "--target", "ggml", *programs)
        _install(built / "bin", folder, programs)
    print(f"Built. Use it with PYTHONPATH={folder / 'python'}")


def program(folder: Path, name: str) -> Path:
    return folder / "python" / "llama_cpp" / "lib" / name


def fetch(place: Path) -> Path:
    """The source archive of the installed version, downloaded."""
    pinned = f"{PACKAGE}=={version(PACKAGE)}"
    pip = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps")
    _run(*pip, "--no-binary", PACKAGE, "--dest", str(place), pinned)
    (archive,) = place.glob("*.tar.gz")
    return archive


def _install(built: Path, folder: Path, programs: Sequence[str]) -> None:
    """Copy the installed package, and exchange what was built."""
    installed = find_spec("llama_cpp")
    assert installed is not None
    assert installed.origin is not None
    package = folder / "python" / "llama_cpp"
    shutil.rmtree(package, ignore_errors=True)
    bytecode = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(installed.origin).parent, package, ignore=bytecode)
    for file in [*built.glob("libggml*"), *(built / name for name in programs)]:
        place = package / "lib" / file.name
        place.unlink(missing_ok=True)  # a link is copied as one, and would not replace a file
        shutil.copy2(file, place, follow_symlinks=False)
    (folder / "version").write_text(version(PACKAGE), encoding="utf-8")


def _run(*command: str) -> None:
    """Run a command visibly; SystemExit where it fails."""
    print("+", *command, flush=True)
    status = subprocess.run(command, check=False).returncode
    if status:
        raise SystemExit(f"{command[0]} ended with {status}; what it said stands above.")
