"""What is kept of other quantizations, and which of them is recommended."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from localspec.pairing import quantizations
from localspec.pairing.quantizations import Advice, TypeForecast, known, of_shape, store
from tests.support.homes import move_to


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    move_to(tmp_path, monkeypatch)


OWN = TypeForecast("Q4_K_M", 1000, True, 28.0, 31.0)


def _advice(*others: TypeForecast) -> Advice:
    return Advice(
        target=Path("/m/rk.gguf"),
        repository="user/repo",
        architecture="llama",
        parameters=1_500_000_000,
        quant="Q4_K_M",
        draft="d.gguf",
        types=(OWN, *others),
        when="2026-11-22",
    )


def _type(quant: str, size: int, drafting: float) -> TypeForecast:
    return TypeForecast(quant, size, False, 20.0, drafting)


def test_it_is_kept() -> None:
    found = _advice(_type("IQ4_NL", 950, 38.0))
    store(found)
    assert known() == [found]
    store(replace(found, when="2026-11-23"))
    assert [one.when for one in known()] == ["2026-11-23"], "the latest of a shape stays"
    assert of_shape(known(), "llama", 1_500_000_000) is not None
    assert of_shape(known(), "llama", 1_500_000_001) is None
    assert of_shape(known(), "qwen3", 1_500_000_000) is None


@pytest.mark.parametrize(
    "damage",
    [
        {"format": 0},
        {"identity": {"machine": {"cores": 999}}},
        {"types": []},
        {"types": [{"quant": "Q4_0"}]},
        {"types": None},
        {"quant": 4},
    ],
)
def test_what_is_damaged_or_of_another_machine_is_left_out(damage: dict[str, object]) -> None:
    store(_advice())
    (path,) = quantizations.folder().iterdir()
    path.write_text(json.dumps(json.loads(path.read_text()) | damage))
    assert known() == []


def test_a_speed_that_is_none() -> None:
    store(_advice(_type("Q8_0", 2000, 10.0)))
    (path,) = quantizations.folder().iterdir()
    path.write_text(path.read_text().replace("38.0", "NaN").replace("10.0", "NaN"))
    assert known() == []


def test_the_fastest_of_about_the_same_size() -> None:
    advice = _advice(_type("Q4_0", 940, 38.5), _type("IQ4_NL", 950, 38.0), _type("Q2_K", 600, 60.0))
    best = advice.faster_than("Q4_K_M")
    assert best is not None
    assert best.quant == "IQ4_NL", "as fast as can be told, and the larger of both"
    assert advice.fastest().quant == "Q2_K"
    assert advice.faster_than("IQ4_NL") is None
    assert advice.faster_than("Q3_K_S") is None, "nothing is known of it"


def test_a_little_is_not_worth_a_download() -> None:
    assert _advice(_type("IQ4_NL", 950, 32.0)).faster_than("Q4_K_M") is None


def test_drafting_that_loses_is_left() -> None:
    assert _type("Q8_0", 2000, 15.0).speed == 20.0
