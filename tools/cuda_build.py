"""Build llama-cpp-python with CUDA from its source archive, on a machine without network.

    pip download --no-binary :all: --no-deps llama-cpp-python==0.3.36
    python -m tools.cuda_build pack llama_cpp_python-0.3.36.tar.gz cuda.tar.xz   # 2 MB of 77
    python tools/cuda_build.py make cuda.tar.xz FOLDER --arch 90                 # there
    PYTHONPATH=FOLDER python -m localspec doctor

With network, `CMAKE_ARGS="-DGGML_CUDA=on" pip install llama-cpp-python==0.3.36` does the same. Here
cuBLAS and CUDA's runtime may also come from PyTorch's wheels (nvidia/cu13), which CMake does not
search. Needs cmake, ninja, nvcc and a C++ compiler, and no other file of this project.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

VENDOR = "vendor/llama.cpp"
KEPT = (
    "llama_cpp",
    f"{VENDOR}/CMakeLists.txt",
    f"{VENDOR}/LICENSE",
    *(f"{VENDOR}/{folder}" for folder in ("cmake", "include", "licenses", "src", "vendor")),
    *(f"{VENDOR}/ggml/{part}" for part in ("CMakeLists.txt", "cmake", "ggml.pc.in", "include")),
)
BACKENDS = ("ggml-cpu", "ggml-cuda")
"""Folders of ggml/src to keep; its files are kept, too."""
OFF = ("COMMON", "APP", "TOOLS", "EXAMPLES", "TESTS", "SERVER")


def kept(path: PurePosixPath) -> bool:
    """Whether a file of the archive is needed; `path`: without the archive's top folder."""
    source = PurePosixPath(VENDOR, "ggml/src")
    if path.is_relative_to(source):
        inner = path.relative_to(source).parts
        return len(inner) == 1 or inner[0] in BACKENDS
    return any(path.is_relative_to(one) for one in KEPT)


def pack(archive: Path, packed: Path) -> None:
    with tarfile.open(archive) as source, tarfile.open(packed, "w:xz") as smaller:
        for member in source:
            inner = PurePosixPath(*PurePosixPath(member.name).parts[1:])
            if member.isfile() and kept(inner):
                member.name = str(inner)
                member.pax_headers = {}  # they repeat long names
                smaller.addfile(member, source.extractfile(member))


def wheels() -> list[Path]:
    """Folders of CUDA libraries that pip has installed."""
    return sorted(
        found.parent
        for place in sys.path
        for found in Path(place or ".").glob("nvidia/*/lib/libcublas.so.*")
    )


def driver() -> Path | None:
    """The CUDA driver's library."""
    places = ("/usr/local/nvidia/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib64")
    return next((one for p in places if (one := Path(p, "libcuda.so.1")).exists()), None)


def settings(arch: str) -> list[str]:
    values = {
        "CMAKE_BUILD_TYPE": "Release",
        "BUILD_SHARED_LIBS": "ON",
        "LLAMA_OPENSSL": "OFF",
        "GGML_CCACHE": "OFF",
        "GGML_CUDA": "ON",
        "CMAKE_CUDA_ARCHITECTURES": arch,
        "CMAKE_BUILD_WITH_INSTALL_RPATH": "ON",
    } | {f"LLAMA_BUILD_{part}": "OFF" for part in OFF}
    found = ["$ORIGIN"]
    for folder in wheels()[:1]:
        for name in ("cublas", "cublasLt"):
            library = next(folder.glob(f"lib{name}.so.*"))
            values[f"CUDA_{name}_LIBRARY"] = str(library)
        values["CMAKE_CUDA_FLAGS"] = f"-I{folder.parent / 'include'}"
        found.append(str(folder))
    values["CMAKE_INSTALL_RPATH"] = ";".join(found)
    libcuda = driver()
    if libcuda is not None:
        values["CUDA_cuda_driver_LIBRARY"] = str(libcuda)
    else:
        values["GGML_CUDA_NO_VMM"] = "ON"  # virtual memory needs the driver's library at link time
    return [f"-D{name}={value}" for name, value in values.items()]


def make(packed: Path, folder: Path, arch: str, more: Sequence[str]) -> None:
    build = folder / "build"
    with tarfile.open(packed) as source:
        source.extractall(folder, filter="data")
    places = ["-S", str(folder / VENDOR), "-B", str(build), "-G", "Ninja"]
    subprocess.run(["cmake", *places, *settings(arch), *more], check=True)
    # llama.cpp's largest files take 2 GB each to compile.
    jobs = min(os.cpu_count() or 1, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 31)
    subprocess.run(
        ["cmake", "--build", str(build), "--target", "llama", "-j", str(max(1, jobs))], check=True
    )
    libraries = folder / "llama_cpp" / "lib"
    libraries.mkdir(exist_ok=True)
    for library in (build / "bin").glob("*.so*"):
        shutil.copy(library, libraries / library.name)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    steps = parser.add_subparsers(dest="step", required=True)
    packing = steps.add_parser("pack")
    packing.add_argument("archive", type=Path)
    packing.add_argument("packed", type=Path)
    making = steps.add_parser("make")
    making.add_argument("packed", type=Path)
    making.add_argument("folder", type=Path)
    making.add_argument("--arch", default="native", help="90 for an H100")
    making.add_argument("more", nargs="*", help="for cmake, after --: -D…")
    values = parser.parse_args()
    if values.step == "pack":
        pack(values.archive, values.packed)
    else:
        make(values.packed, values.folder.resolve(), values.arch, values.more)


if __name__ == "__main__":
    main()
