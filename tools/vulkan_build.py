"""llama-cpp-python with llama.cpp's Vulkan backend: a device to offload to, on any machine.

    python -m tools.vulkan_build [FOLDER] [--jobs N] [--headers FOLDER]
    GGML_VK_VISIBLE_DEVICES=0 PYTHONPATH=build/vulkan/python python -m localspec doctor

Mesa's driver llvmpipe computes on the processor, and is a GPU to llama.cpp: it has memory of its
own, takes layers, and computes beside the program. llama.cpp leaves such a device out of its own
accord; GGML_VK_VISIBLE_DEVICES=0 takes it. ggml is built, for many minutes on two cores, and put
into FOLDER (build/vulkan) as `tools.native_build` says.

Needs, in Debian's words, mesa-vulkan-drivers, glslc, libvulkan-dev and spirv-headers besides, the
latter two of Debian 13: dev/gpu.md says how others have them.
"""

from __future__ import annotations

from pathlib import Path

from tools import native_build

FOLDER = native_build.PLACE / "vulkan"
INSTALLED = Path("/usr")
NEEDED = "VkLayerSettingEXT"
"""What the backend uses of Vulkan's headers that those of 2023 do not have."""


def main() -> None:
    """Build."""
    parser = native_build.options(__doc__ or "", FOLDER)
    parser.add_argument("--headers", type=Path, help="has include/vulkan and SPIRV-Headers's cmake")
    said = parser.parse_args()
    if not native_build.is_built(said.folder):
        check(said.headers or INSTALLED)
    native_build.make(said.folder, flags(said.headers), said.jobs)


def flags(headers: Path | None) -> tuple[str, ...]:
    """For cmake; `headers`: a folder whose headers are taken, where not those installed."""
    found = ("-DGGML_VULKAN=ON", "-DLLAMA_BUILD_TOOLS=OFF", "-DLLAMA_BUILD_COMMON=OFF")
    if headers is None:
        return found
    where = headers.resolve()
    return (*found, f"-DVulkan_INCLUDE_DIR={where / 'include'}", f"-DCMAKE_PREFIX_PATH={where}")


def check(headers: Path) -> None:
    """Return where Vulkan's headers will do, or are somewhere else, where CMake may find them.

    Raises:
        SystemExit: they are too old, which a compiler would say after some minutes.
    """
    core = headers / "include" / "vulkan" / "vulkan_core.h"
    if core.is_file() and NEEDED not in core.read_text(encoding="utf-8"):
        raise SystemExit(
            f"The Vulkan headers in {core.parent} are too old for llama.cpp. Unpack newer ones "
            "beside them, and name them with --headers: dev/gpu.md says how."
        )


if __name__ == "__main__":
    main()
