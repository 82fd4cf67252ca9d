"""Build llama-cpp-python with a backend that its packages do not include.

    python -m tools.native_build rpc [--jobs N]                       # and ggml-rpc-server
    python -m tools.native_build vulkan [--jobs N] [--headers FOLDER]
    GGML_VK_VISIBLE_DEVICES=0 PYTHONPATH=build/vulkan/python python -m localspec doctor

ggml is built from the source archive of the installed version, and put into

    build/BACKEND/python/llama_cpp       a copy of the installed package, with these libraries
    build/BACKEND/python/llama_cpp/lib   its libraries, ggml's replaced, and programs of that build

for programs with build/BACKEND/python first on PYTHONPATH. LLAMA_CPP_LIB_PATH is not enough: the
package would also load its own libggml, and two copies of ggml have two registries of devices.

Needs cmake and a C++ compiler; Vulkan also mesa-vulkan-drivers, glslc, libvulkan-dev and
spirv-headers of Debian 13 (dev/gpu.md). Mesa's driver llvmpipe computes on the CPU; llama.cpp uses
it as a GPU if GGML_VK_VISIBLE_DEVICES=0 selects it.
"""

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

PACKAGE, RPC_SERVER = "llama-cpp-python", "ggml-rpc-server"
PLACE = Path(__file__).parents[1] / "build"
BACKENDS = {
    "rpc": ("-DGGML_RPC=ON", "-DLLAMA_BUILD_TOOLS=ON"),
    "vulkan": ("-DGGML_VULKAN=ON", "-DLLAMA_BUILD_TOOLS=OFF", "-DLLAMA_BUILD_COMMON=OFF"),
}
PROGRAMS = {"rpc": (RPC_SERVER,)}
"""Targets of the build besides ggml."""
_FLAGS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=ON",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_SERVER=OFF",
    # The libraries find each other in their folder.
    "-DCMAKE_INSTALL_RPATH=$ORIGIN",
    "-DCMAKE_BUILD_WITH_INSTALL_RPATH=ON",
)
_NEEDED = "VkLayerSettingEXT"
"""Names used by the backend that are missing in Vulkan's headers of 2023."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("backend", choices=BACKENDS)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="compilers at a time")
    parser.add_argument("--headers", type=Path, help="has include/vulkan and SPIRV-Headers's cmake")
    args = parser.parse_args()
    folder = PLACE / args.backend
    if is_built(args.backend):
        print(f"{folder} has it already; remove it to build it again.")
        return
    flags = [*_FLAGS, *BACKENDS[args.backend]]
    if args.backend == "vulkan":
        flags += _headers(args.headers)
    make(args.backend, flags, args.jobs)
    print(f"Built. Use it with PYTHONPATH={folder / 'python'}")
    for name in PROGRAMS.get(args.backend, ()):
        print(f"Start servers with\n  {program(name)} --host 0.0.0.0 --port 50052")


def is_built(backend: str) -> bool:
    """Whether there is a build of the installed version."""
    marker = PLACE / backend / "version"
    return marker.is_file() and marker.read_text(encoding="utf-8") == version(PACKAGE)


def program(name: str, backend: str = "rpc") -> Path:
    return PLACE / backend / "python" / "llama_cpp" / "lib" / name


def _headers(folder: Path | None) -> list[str]:
    """Compiler flags for headers in a folder. SystemExit if Vulkan's are too old, which a compiler
    would report only after minutes."""
    core = (folder or Path("/usr")) / "include" / "vulkan" / "vulkan_core.h"
    if core.is_file() and _NEEDED not in core.read_text(encoding="utf-8"):
        raise SystemExit(
            f"The Vulkan headers in {core.parent} are too old for llama.cpp. Unpack newer ones "
            "next to them, and name them with --headers (see dev/gpu.md)."
        )
    if folder is None:
        return []
    where = folder.resolve()
    return [f"-DVulkan_INCLUDE_DIR={where / 'include'}", f"-DCMAKE_PREFIX_PATH={where}"]


def make(backend: str, flags: list[str], jobs: int) -> None:
    """Build and install; SystemExit if a command fails."""
    programs = PROGRAMS.get(backend, ())
    with tempfile.TemporaryDirectory(prefix="localspec-build-") as place:
        archive = fetch(Path(place))
        with tarfile.open(archive) as packed:
            packed.extractall(place, filter="data")
        source = Path(place, archive.name.removesuffix(".tar.gz"), "vendor", "llama.cpp")
        built = Path(place) / "build"
        _run("cmake", "-S", str(source), "-B", str(built), *flags)
        _run("cmake", "--build", str(built), "-j", str(jobs), "--target", "ggml", *programs)
        files = [*(built / "bin").glob("libggml*"), *(built / "bin" / name for name in programs)]
        _install(files, PLACE / backend)


def fetch(place: Path) -> Path:
    """Download the source archive of the installed version."""
    pinned = f"{PACKAGE}=={version(PACKAGE)}"
    pip = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps")
    _run(*pip, "--no-binary", PACKAGE, "--dest", str(place), pinned)
    (archive,) = place.glob("*.tar.gz")
    return archive


def _install(built: list[Path], folder: Path) -> None:
    """Copy the installed package, and replace the libraries that were built."""
    installed = find_spec("llama_cpp")
    assert installed is not None
    assert installed.origin is not None
    package = folder / "python" / "llama_cpp"
    shutil.rmtree(package, ignore_errors=True)
    bytecode = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(installed.origin).parent, package, ignore=bytecode)
    for file in built:
        place = package / "lib" / file.name
        place.unlink(missing_ok=True)  # links are copied as links, which cannot replace a file
        shutil.copy2(file, place, follow_symlinks=False)
    (folder / "version").write_text(version(PACKAGE), encoding="utf-8")


def _run(*command: str) -> None:
    """Run a command with its output shown; SystemExit if it fails."""
    print("+", *command, flush=True)
    status = subprocess.run(command, check=False).returncode
    if status:
        raise SystemExit(f"{command[0]} failed with status {status}; see its output above.")


if __name__ == "__main__":
    main()
