"""Fixtures over the built-in pair; one open pair serves a whole module."""

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

import localspec
from localspec import paths
from localspec.kernels import library_path
from localspec.llama.kernels import status
from tests.support import packages
from tests.support.greedy import Reference
from tests.support.homes import move_to
from tests.support.sessions import module_pair

DATA = Path(__file__).parent / "data"
NIGHTLY = re.compile(r"^pytestmark = .*mark\.nightly", re.MULTILINE)

# The same examples in every run, as all seeds are fixed; `--hypothesis-profile=default` looks for
# new ones.
settings.register_profile("fixed", derandomize=True, deadline=None)
settings.load_profile("fixed")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """As many test processes as cores if each can be pinned to one, else one."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_setaffinity") else 0


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import nightly files (clients, terminals, trainers) in `make check`."""
    if config.option.markexpr != "not nightly" or collection_path.suffix != ".py":
        return None
    text = collection_path.read_text(encoding="utf-8")
    return True if NIGHTLY.search(text) else None


# Pin each of several test processes to one core: on shared cores, threads of passes would wait for
# each other most of the time.
if (worker := os.environ.get("PYTEST_XDIST_WORKER")) and hasattr(os, "sched_setaffinity"):
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[int(worker.removeprefix("gw")) % len(cores)]})


@pytest.fixture(scope="session", autouse=True)
def _own_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Separate caches and settings from those of the user who runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCALSPEC_HOME", str(tmp_path_factory.mktemp("home")))
        # The listed models do not depend on installed packages, in other processes too.
        packages.hide(patch, tmp_path_factory.mktemp("hidden"))
        yield


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A separate LOCALSPEC_HOME for one test."""
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder, in a home without models and with separate caches."""
    return move_to(tmp_path, monkeypatch)


@pytest.fixture(scope="session", autouse=True)
def _signals_arrive() -> None:
    """Under nohup, SIGHUP would be ignored, and SIGINT in background jobs, also by children."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def kernels() -> None:
    """Skip tests of localspec's kernels if these were not built; fail if they do not work."""
    if not library_path().is_file():
        pytest.skip(f"{library_path()} was not built, see docs/install.md")
    found = status()
    assert found.in_use, found.why_not


@pytest.fixture(scope="session")
def prompts() -> list[str]:
    """Raw prompts of seven kinds, eight of each, the kinds mixed."""
    lines = (DATA / "prompts.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["prompt"] for line in lines]


engine = module_pair(context=1024)
"""The built-in pair with fixed costs of passes."""


@pytest.fixture(scope="session")
def plain_answers(target_path: Path, prompts: list[str]) -> Iterator[Reference]:
    """Plain decoding of the prompts by the built-in target."""
    with localspec.load(target_path, draft=None) as plain:
        yield (known := Reference(plain, prompts))
        known.context.close()


@pytest.fixture(scope="session")
def target_path() -> Path:
    return paths.embedded(paths.EMBEDDED_TARGET)


@pytest.fixture(scope="session")
def draft_path() -> Path:
    return paths.embedded(paths.EMBEDDED_DRAFT)
