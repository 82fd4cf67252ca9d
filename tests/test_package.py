"""The package as others meet it: imported, built into a wheel, installed elsewhere."""

import json
import os
import sysconfig
import venv
import zipfile
from importlib.metadata import distributions, metadata, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from hatch_build import LIBRARY, PLACE
from tests.cli.process import finished, run_python
from tools.wheel import build

pytestmark = pytest.mark.nightly

REPOSITORY = Path(__file__).parents[1]
HEAVY = {"llama_cpp", "textual", "starlette", "huggingface_hub", "gguf", "scipy"}
HEAVY |= {"numpy", "jinja2", "pydantic", "rich"}
EXPORTED = """
import ctypes
from localspec.kernels import library_path
library = ctypes.CDLL(str(library_path()))
for name in ("supported", "start", "take", "restoring", "counts"):
    getattr(library, f"localspec_kernels_{name}")
library.localspec_kernels_built_for.restype = ctypes.c_char_p
print(library_path())
print(library.localspec_kernels_built_for().decode())
"""
"""Where the installed library is and for what; AttributeError where it lacks a function."""


def test_importing_loads_nothing_heavy() -> None:
    show = "import localspec, sys, json; localspec.load_async(); print(json.dumps([*sys.modules]))"
    assert {name.partition(".")[0] for name in run_python(show).json}.isdisjoint(HEAVY)


@pytest.mark.parametrize("home", [{}, {"HOME": ""}, {"HOME": "here"}])
def test_users_without_a_home_get_the_root(home: dict[str, str]) -> None:
    """As from Docker, for a user id that nothing on the machine knows."""
    nobody = "import os, pwd; pwd.getpwuid = {}.__getitem__; from localspec import paths; "
    run = run_python(f"{nobody}print(paths.cache_folder(), os.environ.get('HOME'))", env=home)
    assert run.succeeded().startswith(("/.cache/", "/Library/"))
    assert run.out.endswith(f" {home.get('HOME')}\n"), "the environment is the program's"


def test_pins_suit_the_oldest_python() -> None:
    oldest = metadata("localspec")["Requires-Python"].removeprefix(">=")
    needed = {
        each.name: "".join(each.metadata.get_all("Requires-Python", [])) for each in distributions()
    }
    pins = (REPOSITORY / "constraints.txt").read_text(encoding="utf-8").splitlines()
    for pin in map(Requirement, pins[1:]):
        if pin.marker is None or pin.marker.evaluate({"python_version": oldest}):
            assert oldest in SpecifierSet(needed.get(pin.name, "")), pin


def test_built_wheel_runs_from_another_folder(tmp_path: Path) -> None:
    """Installed in an environment of its own, and run where no checkout is. It borrows the
    dependencies of this one, so that the test needs no network; localspec itself can only come from
    the wheel."""
    wheel = build(REPOSITORY, tmp_path)
    names = zipfile.ZipFile(wheel).namelist()
    data = ("tale-13m-q8_0.gguf", "tale-3m-q8_0.gguf", "catalog.toml")
    needed = {"localspec/py.typed", "localspec/server/page.html", f"{PLACE}/{LIBRARY}"}
    assert needed | {f"localspec/models/{name}" for name in data} <= {*names}
    assert not any(name.startswith(("tests/", "tools/")) for name in names)
    assert not any(name.endswith((".cpp", ".h", "CMakeLists.txt")) for name in names)
    assert wheel.name.startswith("localspec-0.1.0-py3-none-")
    assert not wheel.name.endswith("-any.whl")

    home = tmp_path / "elsewhere"
    venv.create(home, with_pip=True)
    python = str(home / ("Scripts" if os.name == "nt" else "bin") / "python")
    install = ("-m", "pip", "install", "--quiet", "--no-deps", "--no-index", str(wheel))
    finished(*install, command=(python,)).succeeded()
    site_packages = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = Path(finished("-c", site_packages, command=(python,)).succeeded().strip())
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")

    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    exported = finished("-c", EXPORTED, command=(python,), cwd=tmp_path, env=env).succeeded()
    library, built_for = exported.splitlines()
    assert Path(library).is_relative_to(home)
    assert built_for == f"llama-cpp-python {version('llama-cpp-python')}"

    installed = (str(Path(python).with_name("localspec")), "run", "-m", "demo", "--json")
    run = finished("-n", "8", "Once", command=installed, cwd=tmp_path, env=env)
    answer = json.loads(run.succeeded())
    assert answer["stats"]["generated_tokens"] == 8
    assert str(home) in answer["files"][0]
