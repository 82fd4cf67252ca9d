"""The folder in which a package with another backend is put, nothing compiled."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

import llama_cpp
import pytest

from tools import native_build, vulkan_build


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """What would have been run; the archive and the libraries are made up."""
    said: list[tuple[str, ...]] = []

    def run(command: tuple[str, ...], **_: object) -> subprocess.CompletedProcess[bytes]:
        said.append(command)
        if command[-1].startswith("llama-cpp-python=="):
            place = Path(command[command.index("--dest") + 1])
            with tarfile.open(place / "llama_cpp_python-0.tar.gz", "w:gz"):
                pass
        if "--build" in command:
            built = Path(command[command.index("--build") + 1], "bin")
            built.mkdir(parents=True)
            for name in ("libggml.so.0", "libggml-vulkan.so", "a-server", "unasked"):
                (built / name).write_text(name)
            (built / "libggml.so").symlink_to("libggml.so.0")
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", run)
    return said


def test_the_copy_has_the_built_libraries_in_place_of_its_own(
    tmp_path: Path, commands: list[tuple[str, ...]]
) -> None:
    native_build.make(tmp_path, ["-DGGML_VULKAN=ON"], 2, programs=["a-server"])
    [configured] = [command for command in commands if "-S" in command]
    assert "-DGGML_VULKAN=ON" in configured
    package, installed = tmp_path / "python" / "llama_cpp", Path(llama_cpp.__file__).parent
    libraries = {file.name for file in (installed / "lib").iterdir()}
    found = {file.name for file in (package / "lib").iterdir()}
    assert found == libraries | {"libggml.so", "libggml.so.0", "libggml-vulkan.so", "a-server"}
    assert (package / "lib" / "libggml.so").read_text() == "libggml.so.0"
    for name in ("llama.py", *(f"lib/{one}" for one in libraries if "llama" in one)):
        assert (package / name).read_bytes() == (installed / name).read_bytes()
    assert native_build.program(tmp_path, "a-server").read_text() == "a-server"
    # What is there is not built again.
    native_build.make(tmp_path, ["-DGGML_VULKAN=ON"], 2)
    assert len(commands) == 3


def test_headers_that_are_too_old_are_told_before_anything_is_built(
    tmp_path: Path, commands: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    headers = tmp_path / "headers"
    core = headers / "include" / "vulkan" / "vulkan_core.h"
    core.parent.mkdir(parents=True)
    core.write_text("typedef struct VkDeviceCreateInfo")
    place = tmp_path / "build"
    monkeypatch.setattr(sys, "argv", ["", str(place), "--headers", str(headers)])
    with pytest.raises(SystemExit, match=r"too old.*--headers"):
        vulkan_build.main()
    assert commands == []
    core.write_text("typedef struct VkLayerSettingEXT")
    vulkan_build.main()
    [configured] = [command for command in commands if "-S" in command]
    assert f"-DVulkan_INCLUDE_DIR={headers / 'include'}" in configured
    assert native_build.is_built(place)
