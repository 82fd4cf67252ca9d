"""What options mean, put together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from localspec.cli.request import read_opening
from localspec.cli.verbs import built
from tests.support import packages


@pytest.fixture
def nothing_said() -> dict[str, Any]:
    return {str(parameter.name): None for parameter in built("run").params}


def test_only_what_was_given_sampling(
    nothing_said: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read_opening(nothing_said).given_sampling == {}
    monkeypatch.setenv("LOCALSPEC_TEMPERATURE", "0.3")
    said = read_opening(nothing_said | {"top_k": 0}).given_sampling
    assert said == {"temperature": 0.3, "top_k": 0}


def test_smollm2_is_the_default_where_its_package_is(
    nothing_said: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    embedded = read_opening(nothing_said)
    assert (embedded.model, embedded.named) == (None, False)
    packages.install(tmp_path, monkeypatch)
    default = read_opening(nothing_said)
    assert (default.model, default.named) == ("smollm2", False)
    demo = read_opening(nothing_said | {"model": "demo"})
    assert (demo.model, demo.named) == ("demo", True)
