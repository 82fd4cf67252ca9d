"""llama-cpp-python with llama.cpp's RPC backend, and the server that goes with it.

    python -m tools.rpc_build [FOLDER] [--jobs N]

Builds the libraries and `ggml-rpc-server` from the source archive of the version that is installed,
in about four minutes of processor time, and puts them into FOLDER (build/rpc):

    FOLDER/python/llama_cpp            a copy of the installed package, with these libraries
    FOLDER/python/llama_cpp/lib/ggml-rpc-server

A program that has FOLDER/python first on its PYTHONPATH uses them. LLAMA_CPP_LIB_PATH would not do:
`llama_cpp._ggml` loads the package's own libggml all the same, and two copies of ggml have two
registries, so that devices that are added to one are unknown to the other.

Needs cmake and a C++ compiler, as installing llama-cpp-python does.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

PACKAGE = "llama-cpp-python"
SERVER = "ggml-rpc-server"
FOLDER = Path(__file__).parents[1] / "build" / "rpc"
SAME_FLAGS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=ON",
    "-DGGML_RPC=ON",
    "-DLLAMA_BUILD_TOOLS=ON",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_SERVER=OFF",
    # The libraries find each other where they lie.
    "-DCMAKE_INSTALL_RPATH=$ORIGIN",
    "-DCMAKE_BUILD_WITH_INSTALL_RPATH=ON",
)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("folder", type=Path, nargs="?", default=FOLDER)
    options.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    said = options.parse_args()
    folder = said.folder.resolve()
    if is_built(folder):
        print(f"{folder} has it already; remove it to build it anew.")
        return
    with tempfile.TemporaryDirectory(prefix="localspec-rpc-") as place:
        source = fetch(Path(place))
        built = build(source / "vendor" / "llama.cpp", Path(place) / "build", said.jobs)
        install(built, folder)
    print(f"Built. Use it with PYTHONPATH={folder / 'python'}, and start servers with")
    print(f"  {server(folder)} --host 0.0.0.0 --port 50052")


def server(folder: Path) -> Path:
    """The server's program in a folder that this tool made."""
    return folder / "python" / "llama_cpp" / "lib" / SERVER


def is_built(folder: Path) -> bool:
    """Whether a folder has the build of the version that is installed."""
    marker = folder / "version"
    return marker.is_file() and marker.read_text(encoding="utf-8") == version(PACKAGE)


def fetch(place: Path) -> Path:
    """The folder of the source archive, downloaded into `place` and unpacked."""
    pinned = f"{PACKAGE}=={version(PACKAGE)}"
    pip = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps")
    run(*pip, "--no-binary", PACKAGE, "--dest", str(place), pinned)
    (archive,) = place.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(place, filter="data")
    return place / archive.name.removesuffix(".tar.gz")


def build(source: Path, place: Path, jobs: int) -> Path:
    """The folder with the libraries and the server, built in `place`."""
    run("cmake", "-S", str(source), "-B", str(place), *SAME_FLAGS)
    run("cmake", "--build", str(place), "-j", str(jobs), "--target", "llama", SERVER)
    return place / "bin"


def install(built: Path, folder: Path) -> None:
    """Copy the installed package, and put what was built in place of its libraries."""
    installed = find_spec("llama_cpp")
    assert installed is not None
    assert installed.origin is not None
    package = folder / "python" / "llama_cpp"
    shutil.rmtree(package, ignore_errors=True)
    libraries = shutil.ignore_patterns("lib", "__pycache__")
    shutil.copytree(Path(installed.origin).parent, package, ignore=libraries)
    (package / "lib").mkdir()
    for file in [*built.glob("lib*"), built / SERVER]:
        shutil.copy2(file, package / "lib", follow_symlinks=False)
    (folder / "version").write_text(version(PACKAGE), encoding="utf-8")


def run(*command: str) -> None:
    """Run a command; what it prints is seen.

    Raises:
        SystemExit: it fails.
    """
    print("+", *command, flush=True)
    status = subprocess.run(command, check=False).returncode
    if status:
        raise SystemExit(f"{command[0]} ended with {status}; what it said stands above.")


if __name__ == "__main__":
    main()
