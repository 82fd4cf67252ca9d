"""llama-cpp-python with llama.cpp's Vulkan backend: a device to offload to, on any machine.

    python -m tools.vulkan_build [FOLDER] [--jobs N] [--headers FOLDER]
    GGML_VK_VISIBLE_DEVICES=0 PYTHONPATH=build/vulkan/python python -m localspec doctor

Mesa's driver llvmpipe computes on the processor, and is a GPU to llama.cpp where
GGML_VK_VISIBLE_DEVICES=0 takes it. ggml is put into FOLDER (build/vulkan) as `tools.native_build`
says. Needs mesa-vulkan-drivers, glslc, libvulkan-dev and spirv-headers of Debian 13 (dev/gpu.md).
"""

from __future__ import annotations

from pathlib import Path

from tools import native_build

FOLDER = native_build.PLACE / "vulkan"
INSTALLED = Path("/usr")
NEEDED = "VkLayerSettingEXT"
"""What the backend uses that Vulkan's headers of 2023 do not have."""


def main() -> None:
    parser = native_build.options(__doc__ or "", FOLDER)
    parser.add_argument("--headers", type=Path, help="has include/vulkan and SPIRV-Headers's cmake")
    said = parser.parse_args()
    if not native_build.is_built(said.folder):
        check(said.headers or INSTALLED)
    native_build.make(said.folder, flags(said.headers), said.jobs)


def flags(headers: Path | None) -> tuple[str, ...]:
    """For cmake; `headers` are taken instead of those installed."""
    found = ("-DGGML_VULKAN=ON", "-DLLAMA_BUILD_TOOLS=OFF", "-DLLAMA_BUILD_COMMON=OFF")
    if headers is None:
        return found
    where = headers.resolve()
    return (*found, f"-DVulkan_INCLUDE_DIR={where / 'include'}", f"-DCMAKE_PREFIX_PATH={where}")


def check(headers: Path) -> None:
    """SystemExit where Vulkan's headers are too old, as a compiler would say after minutes."""
    core = headers / "include" / "vulkan" / "vulkan_core.h"
    if core.is_file() and NEEDED not in core.read_text(encoding="utf-8"):
        raise SystemExit(
            f"The Vulkan headers in {core.parent} are too old for llama.cpp. Unpack newer ones "
            "beside them, and name them with --headers: dev/gpu.md says how."
        )


if __name__ == "__main__":
    main()
