"""Fixtures over the embedded pair; one open pair serves a whole module."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

import localspec
from localspec import Engine, paths
from localspec.kernels import library_path
from localspec.llama.kernels import status
from tests.support import packages
from tests.support.greedy import Reference
from tests.support.sessions import drafting_pair

DATA = Path(__file__).parent / "data"
NIGHTLY = re.compile(r"^pytestmark = .*mark\.nightly", re.MULTILINE)

# The same examples in every run, as all seeds are fixed; `--hypothesis-profile=default` looks for
# new ones.
settings.register_profile("fixed", derandomize=True, deadline=None)
settings.load_profile("fixed")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """As many test processes as cores, where each can be kept to one; else one for all tests."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_setaffinity") else 0


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """`make check` does not import what it leaves out: clients, terminals, trainers."""
    if config.option.markexpr != "not nightly" or collection_path.suffix != ".py":
        return None
    text = collection_path.read_text(encoding="utf-8")
    return True if NIGHTLY.search(text) else None


def _a_core_of_its_own() -> None:
    """Keep each of several test processes to one core.

    Passes of two processes that share cores wait for each other's threads most of the time.
    """
    worker = os.environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw")
    if worker and hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[int(worker) % len(cores)]})


_a_core_of_its_own()


@pytest.fixture(scope="session", autouse=True)
def _own_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Caches and settings of whoever runs the tests stay out of them, and theirs of ours."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCALSPEC_HOME", str(tmp_path_factory.mktemp("home")))
        # Installed or not, the models listed are the same, in other processes too.
        packages.hide(patch, tmp_path_factory.mktemp("hidden"))
        yield


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of localspec's for this test alone."""
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture(scope="session", autouse=True)
def _signals_arrive() -> None:
    """Under nohup SIGHUP is ignored, and Ctrl+C by a shell's background jobs: by every program that
    is started here too."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def kernels() -> None:
    """For tests of localspec's own kernels: where they work, or are broken and must be told."""
    if not library_path().is_file():
        pytest.skip(f"{library_path()} was not built, see docs/install.md")
    found = status()
    assert found.in_use, found.why_not


@pytest.fixture(scope="session")
def prompts() -> list[str]:
    """Raw prompts of seven kinds, eight of each, the kinds mixed."""
    lines = (DATA / "prompts.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["prompt"] for line in lines]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """The embedded pair with room for 1,024 tokens, and made-up costs of its passes."""
    with drafting_pair(context=1024) as pair:
        yield pair


@pytest.fixture(scope="session")
def plain_answers(target_path: Path, prompts: list[str]) -> Iterator[Reference]:
    """What the embedded target says to the prompts without any draft."""
    with localspec.load(target_path, draft=None) as plain:
        yield (known := Reference(plain, prompts))
        known.context.close()


@pytest.fixture(scope="session")
def target_path() -> Path:
    return paths.embedded(paths.EMBEDDED_TARGET)


@pytest.fixture(scope="session")
def draft_path() -> Path:
    return paths.embedded(paths.EMBEDDED_DRAFT)
