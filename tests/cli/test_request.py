"""What options mean, put together."""

from __future__ import annotations

from typing import Any

import pytest
import typer

from localspec.cli.main import app
from localspec.cli.request import read_opening


@pytest.fixture
def nothing_said() -> dict[str, Any]:
    command: Any = typer.main.get_command(app)
    return {str(parameter.name): None for parameter in command.commands["run"].params}


def test_only_what_was_said_of_sampling(nothing_said: dict[str, Any]) -> None:
    assert read_opening(nothing_said).said_of_sampling == {}
    said = nothing_said | {"temperature": 0.8, "top_k": 0}
    assert read_opening(said).said_of_sampling == {"temperature": 0.8, "top_k": 0}


def test_a_variable_says_something_too(
    nothing_said: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALSPEC_TEMPERATURE", "0.3")
    assert read_opening(nothing_said).said_of_sampling == {"temperature": 0.3}
