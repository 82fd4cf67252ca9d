"""The command line called in this process, with the streams it would have."""

import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from localspec.cli.main import main
from localspec.cli.output import Console
from tests.cli.process import Result as Result
from tests.support.ggufs import tiny_llama


class Cli(Protocol):
    """Calls `localspec`; without `stdin`, standard input is a terminal where that is `typed`."""

    def __call__(self, *arguments: str, stdin: bytes | None = None, typed: str = "") -> Result: ...


class Terminal(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


@pytest.fixture(scope="session", autouse=True)
def _own_environment() -> Iterator[None]:
    """One thread: on a busy machine two wait for each other."""
    with pytest.MonkeyPatch.context() as patch:
        for name in os.environ:
            if name.startswith("LOCALSPEC_") and name != "LOCALSPEC_HOME":
                patch.delenv(name)
        # Its effect is looked for; GITHUB_ACTIONS has typer colour what is no terminal.
        for name in ("NO_COLOR", "FORCE_COLOR", "GITHUB_ACTIONS", "PY_COLORS", "PYTHONUNBUFFERED"):
            patch.delenv(name, raising=False)
        patch.setenv("LOCALSPEC_THREADS", "1")
        patch.setenv("COLUMNS", "100")
        yield


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    def call(*arguments: str, stdin: bytes | None = None, typed: str = "") -> Result:
        kind = Terminal if stdin is None else io.TextIOWrapper
        stream = kind(io.BytesIO(typed.encode() if stdin is None else stdin))
        with monkeypatch.context() as patch, stream:
            patch.setattr(sys, "stdin", stream)
            code = main(arguments)
        out, err = capfd.readouterr()
        return Result(code, out, err)

    yield call
    Console().configure(quiet=False, verbosity=0)  # takes the log handler of -v away


@pytest.fixture(scope="session")
def plain_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model without a chat template, and without a known draft."""
    return tiny_llama(tmp_path_factory.mktemp("plain") / "plain.gguf", chat_template="")


@pytest.fixture(scope="session")
def long_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With so much context that reading or filling it takes many seconds."""
    path = tmp_path_factory.mktemp("long") / "long.gguf"
    return tiny_llama(path, context=65536, chat_template="")
