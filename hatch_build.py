"""Builds the CPU kernels' library with CMake: hatchling's hook for wheels and editable installs.

    python hatch_build.py       builds it in this checkout as far as it is out of date (`make`)

localspec works without the library. If the build fails, it prints a warning, and the package is
installed without it. LOCALSPEC_BUILD_KERNELS=off builds nothing, =require makes a failure fatal.
"""

import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.tags import platform_tags

PLACE = "localspec/kernels"
LIBRARY = f"liblocalspec_kernels.{'dylib' if sys.platform == 'darwin' else 'so'}"
OLDEST_CMAKE = (3, 20)
SWITCH = os.environ.get("LOCALSPEC_BUILD_KERNELS", "")


class NotBuilt(Exception):
    """Why there is no library."""


def obstacle() -> str | None:
    """What stands in the way before anything is tried."""
    if sys.platform == "win32":
        return "they are not made for Windows yet"
    if platform.machine() not in ("x86_64", "aarch64", "arm64"):
        return f"there are none for {platform.machine()}"
    compilers = shlex.split(os.environ.get("CXX", ""))[:1] or ["c++", "g++", "clang++"]
    if not any(map(shutil.which, compilers)):
        return "there is no C++ compiler"
    return None


def cmake() -> str | None:
    """The cmake that is found first, None if it is too old."""
    found = shutil.which("cmake")
    if found is None:
        return None
    said = subprocess.run([found, "--version"], capture_output=True, text=True, check=False).stdout
    version = re.search(r"(\d+)\.(\d+)", said)
    return found if version and tuple(map(int, version.groups())) >= OLDEST_CMAKE else None


def build(root: Path) -> Path:
    """The library, in build/kernels, where only what is out of date is compiled.

    Raises:
        NotBuilt: with what the compiler said.
    """
    reason, program, maker = obstacle(), cmake(), shutil.which("ninja") or shutil.which("make")
    if reason or program is None or maker is None:
        raise NotBuilt(reason or "there is no cmake 3.20 or newer with ninja or make")
    folder = root / "build" / "kernels"
    # CMake keeps the first compiler and maker that it saw, some of them in pip's temporary folders.
    flags = [os.environ.get(name, "") for name in ("CXX", "CXXFLAGS", "LDFLAGS")]
    tools = "\n".join([sysconfig.get_platform(), str(root), program, maker, *flags])
    remembered = folder / "tools"
    if not remembered.is_file() or remembered.read_text(encoding="utf-8") != tools:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        remembered.write_text(tools, encoding="utf-8")
    generator = "Ninja" if Path(maker).name == "ninja" else "Unix Makefiles"
    jobs = str(os.cpu_count() or 1)
    for arguments in (
        ("-S", str(root / PLACE), "-B", str(folder), "-G", generator),
        ("--build", str(folder), "--target", "localspec_kernels", "--parallel", jobs),
    ):
        command = [program, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            said = (done.stdout + done.stderr).strip().splitlines()[-20:]
            raise NotBuilt("\n".join([f"{shlex.join(command)} failed", *said]))
    return folder / LIBRARY


def built(root: Path, warn: Callable[[str], None]) -> Path | None:
    """The library, or None after a warning, or without one where nobody wants it.

    Raises:
        SystemExit: it is required, and cannot be built.
    """
    if SWITCH not in ("", "off", "require"):
        raise SystemExit(f"LOCALSPEC_BUILD_KERNELS is off or require, not {SWITCH!r}")
    if SWITCH == "off":
        return None
    try:
        return build(root)
    except NotBuilt as error:
        if SWITCH == "require":
            raise SystemExit(
                f"localspec's CPU kernels are required, and missing: {error}"
            ) from None
        warn(
            f"localspec is installed without its CPU kernels, and runs on llama.cpp's: {error}\n"
            "To get them, install a C++ compiler and cmake (Debian, Ubuntu: apt install "
            "build-essential cmake), then localspec again."
        )
        return None


def put_in_place(root: Path, warn: Callable[[str], None]) -> None:
    """Build for a checkout; what no longer fits the sources is taken away."""
    library = built(root, warn)
    place = root / PLACE / LIBRARY
    if library is not None:
        # Exchanged, not written over: a process may have the old one mapped.
        new = place.with_suffix(".new")
        shutil.copyfile(library, new)
        new.replace(place)
    elif SWITCH != "off":
        place.unlink(missing_ok=True)


class KernelsHook(BuildHookInterface[Any]):
    """For the wheel: the library in it, and the platform in its name."""

    def dependencies(self) -> list[str]:
        """cmake, and something that runs what it writes, from PyPI where the system has none."""
        if SWITCH == "off" or obstacle() is not None:
            return []
        wanted = [] if cmake() else [f"cmake>={'.'.join(map(str, OLDEST_CMAKE))}"]
        return wanted if shutil.which("ninja") or shutil.which("make") else [*wanted, "ninja>=1.11"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        root = Path(self.root)
        if version == "editable":
            put_in_place(root, self.app.display_warning)
            return
        library = built(root, self.app.display_warning)
        if library is None:
            return
        build_data["force_include"][str(library)] = f"{PLACE}/{LIBRARY}"
        build_data["pure_python"] = False
        # For any Python. The tags of old Linux systems are for those who build on one.
        plain = (tag for tag in platform_tags() if not tag.startswith(("manylinux", "musllinux")))
        build_data["tag"] = f"py3-none-{next(plain)}"


if __name__ == "__main__":
    put_in_place(Path(__file__).resolve().parent, lambda text: print(text, file=sys.stderr))
