"""Which quantization would be faster: in doctor's report, `models` and `list`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from localspec import paths
from localspec.cli import quantizations as words
from localspec.doctor import checkup, type_costs
from localspec.gguf.reader import read_gguf
from localspec.pairing.quantizations import Advice, TypeForecast, known, store
from tests.cli.conftest import Cli
from tests.support.homes import move_to


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return move_to(tmp_path, monkeypatch)


def _advice() -> Advice:
    """As if doctor had looked at the embedded target, and it were from the hub."""
    target = read_gguf(paths.embedded(paths.EMBEDDED_TARGET))
    return Advice(
        target=target.path,
        repository="Qwen/Qwen3-4B-GGUF",
        architecture=target.architecture,
        parameters=target.n_parameters,
        quant="Q8_0",
        draft="d.gguf",
        types=(
            TypeForecast("Q8_0", 1000, True, 28.0, 31.0),
            TypeForecast("Q4_0", 500, False, 40.0, 50.0),
            TypeForecast("Q6_K", 960, False, 30.0, 38.0),
        ),
        when="2026-11-22",
    )


def test_the_sentence_says_what_to_type() -> None:
    text = words.sentence(_advice())
    assert text.startswith(
        "Q6_K of this model would answer at 38 tok/s with this draft, yours (Q8_0) at 31; "
        "`localspec pull Qwen/Qwen3-4B-GGUF:Q6_K`."
    )
    assert text.endswith(words.CAVEAT)
    assert "llama-quantize" in words.sentence(replace(_advice(), repository=None))


def test_the_sentence_where_nothing_is_better() -> None:
    advice = _advice()
    text = words.sentence(replace(advice, types=advice.types[:2]))
    assert "No other type of about this size would be faster" in text
    assert "A smaller file would: Q4_0 at 50." in text
    without = replace(advice.types[0], drafting=None)
    alone = words.sentence(replace(advice, types=(without,)))
    assert "without drafts" in alone
    assert "smaller" not in alone


def test_the_table() -> None:
    lines = words.types_table(_advice()).splitlines()
    assert [line.split()[0] for line in lines if "Q" in line.split()[0]] == [
        *("QUANT", "Q4_0", "Q6_K", "Q8_0")
    ]
    own = next(line for line in lines if "(this file)" in line)
    assert own.split()[-3:] == ["28", "31", "1.00"]


def test_models_says_it(cli: Cli) -> None:
    assert "FASTEST HERE" not in cli("models").out
    store(_advice())
    result = cli("models")
    line = next(line for line in result.out.splitlines() if line.startswith("qwen3-4b "))
    assert line.endswith("Q4_0, 50 tok/s")
    assert "tale-13m-q8_0.gguf (Q8_0): Q6_K would answer at 38 tok/s instead of 31" in (
        " ".join(result.out.split())
    )
    told = cli("models", "--json").json
    fastest = {entry["name"]: entry.get("fastest_here") for entry in told["models"]}
    assert fastest["qwen3-4b"] == {"quantization": "Q4_0", "tokens_per_second": 50.0}
    assert fastest["qwen3-8b"] is None
    assert [one["faster"] for one in told["measured_here"]] == ["Q6_K"]


def test_files_that_are_gone_get_no_note(cli: Cli, here: Path) -> None:
    store(replace(_advice(), target=here / "gone.gguf"))
    assert "gone.gguf" not in cli("models").out


def test_list_says_it(cli: Cli) -> None:
    assert "FASTER HERE" not in cli("list").out
    store(_advice())
    result = cli("list")
    assert "FASTER HERE" in result.out
    line = next(line for line in result.out.splitlines() if line.startswith("demo (tale-13m)"))
    assert "Q6_K, 1.23 ×" in line
    faster = [model["faster_here"] for model in cli("list", "--json").json["models"]]
    assert faster == ["Q6_K", None]


def test_doctor_measures_and_keeps_it(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkup, "QUICK", 3.0)
    monkeypatch.setattr(type_costs, "QUICK", 60.0)
    result = cli("doctor", "--quick", "--json")
    assert result.code == 0
    found = result.json["quantizations"]
    assert (found["quantization"], found["types"][0]["own"]) == ("Q8_0", True)
    assert {one["quant"] for one in found["types"]} == {
        *("Q8_0", "Q4_0", "IQ4_NL", "Q4_K_M", "Q5_K_M", "Q6_K")
    }
    assert all(one["plain"] > 0 and one["drafting"] > 0 for one in found["types"])
    assert found["types"][0]["times"] == 1.0
    assert result.json["why_no_quantizations"] is None
    if result.json["calibration"]["steady"]:
        assert [one.quant for one in known()] == ["Q8_0"]


def test_doctor_says_why_there_is_nothing(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkup, "QUICK", 2.0)
    monkeypatch.setattr(type_costs, "QUICK", 0.0)
    result = cli("doctor", "--quick")
    assert result.code == 0
    assert "Other quantizations were not timed: there was no time for more." in result.out
    assert known() == []
