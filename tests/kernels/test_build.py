"""Building the kernels' library during installation, and failures."""

import ctypes
import os
import sys
import zipfile
from pathlib import Path

import pytest

import hatch_build
from hatch_build import LIBRARY, PLACE, KernelsHook, NotBuilt, build, put_in_place
from tests.bench.samples import executable
from tests.cli.process import finished, run_python
from tools.wheel import copy, shared_libraries

pytestmark = pytest.mark.nightly

PROJECT = """
cmake_minimum_required(VERSION 3.20)
project(small LANGUAGES CXX)
add_library(localspec_kernels SHARED answer.cpp)
"""


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout whose library is a single function, which compiles fast."""
    monkeypatch.setattr(hatch_build, "SWITCH", "")
    monkeypatch.delenv("CXX", raising=False)
    place = tmp_path / PLACE
    place.mkdir(parents=True)
    (place / "CMakeLists.txt").write_text(PROJECT)
    write(tmp_path, 1)
    return tmp_path


def write(root: Path, answer: int) -> None:
    source = root / PLACE / "answer.cpp"
    source.write_text(f'extern "C" int answer() {{ return {answer}; }}\n')
    # A later time stamp than that of the last compilation.
    os.utime(source, (source.stat().st_mtime + answer,) * 2)


def answer_of(library: Path) -> int:
    """The answer of a library, in another process, as a loaded one stays loaded."""
    code = f"import ctypes; print(ctypes.CDLL({str(library)!r}).answer())"
    return int(run_python(code).succeeded())


def test_changed_sources_are_rebuilt(checkout: Path) -> None:
    put_in_place(checkout, pytest.fail)
    library = checkout / PLACE / LIBRARY
    mapped = ctypes.CDLL(str(library))
    assert mapped.answer() == 1
    write(checkout, 2)
    put_in_place(checkout, pytest.fail)
    assert answer_of(library) == 2
    assert mapped.answer() == 1, "a loaded library stays"


def test_another_compiler_builds_anew(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build(checkout)
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(NotBuilt, match="not able to compile"):
        build(checkout)
    monkeypatch.delenv("CXX")
    assert answer_of(build(checkout)) == 1


def test_outdated_library_is_removed(checkout: Path) -> None:
    warnings: list[str] = []
    put_in_place(checkout, warnings.append)
    (checkout / PLACE / "answer.cpp").write_text("int answer() { nonsense }")
    put_in_place(checkout, warnings.append)
    assert not (checkout / PLACE / LIBRARY).exists()
    (warning,) = warnings
    assert "nonsense" in warning
    assert "install a C++ compiler" in warning


def test_off_builds_nothing(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hatch_build, "SWITCH", "off")
    put_in_place(checkout, pytest.fail)
    assert not (checkout / "build").exists()
    there = checkout / PLACE / LIBRARY
    there.write_text("there")
    put_in_place(checkout, pytest.fail)
    assert there.read_text() == "there"


def test_require_without_a_compiler_stops(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hatch_build, "SWITCH", "require")
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(SystemExit, match="required, and missing: there is no C\\+\\+ compiler"):
        put_in_place(checkout, pytest.fail)
    monkeypatch.setattr(hatch_build, "SWITCH", "no")
    with pytest.raises(SystemExit, match="off or require, not 'no'"):
        put_in_place(checkout, pytest.fail)


def test_cmake_from_pypi_if_missing(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hook = KernelsHook(str(checkout), {}, None, None, "", "wheel")  # type: ignore[arg-type]
    assert hook.dependencies() == []
    monkeypatch.setenv("PATH", str(checkout))
    assert hook.dependencies() == [], "nor is there a compiler that it could run"
    monkeypatch.setenv("CXX", sys.executable)
    assert hook.dependencies() == ["cmake>=3.20", "ninja>=1.11"]
    for version, wanted in (("3.19.8", ["cmake>=3.20", "ninja>=1.11"]), ("4.1.0", ["ninja>=1.11"])):
        executable(checkout / "cmake", f"#!/bin/sh\necho cmake version {version}\n")
        assert hook.dependencies() == wanted


def test_installation_without_a_compiler(tmp_path: Path) -> None:
    site = tmp_path / "site"
    command = [sys.executable, "-m", "pip", "install", "--verbose", "--no-index", "--no-deps"]
    command += ["--no-build-isolation", "--target", str(site), str(copy(tmp_path / "copy"))]
    env = os.environ | {"PATH": str(tmp_path), "LOCALSPEC_BUILD_KERNELS": ""}
    env.pop("CXX", None)
    done = finished(command=tuple(command), env=env)
    output = done.out + done.err
    assert done.code == 0, output
    assert output.count("without its CPU kernels, and runs on llama.cpp's: there is no C++") == 1
    assert "localspec-0.1.0-py3-none-any.whl" in output
    code = "from localspec import kernels as k; print(k.__file__, k.library_path().exists())"
    listed = run_python(code, cwd=site, env=env | {"PYTHONPATH": str(site)}).succeeded()
    assert listed.split() == [str(site / PLACE / "__init__.py"), "False"]


def test_list_of_parts_has_the_library(tmp_path: Path) -> None:
    path = tmp_path / "some.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{PLACE}/{LIBRARY}", b"library")
        archive.writestr(f"{PLACE}/__init__.py", b"")
    (part,) = shared_libraries(path, "0.1.0")
    assert (part["name"], part["version"]) == (f"{PLACE}/{LIBRARY}", "0.1.0")
    assert part["hashes"][0]["content"].startswith("b718f1354f72")  # printf library | sha256sum
