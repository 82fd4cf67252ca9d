"""The command: its certificate, what another machine makes of it, and every way to end."""

import json
from pathlib import Path

import pytest

from localspec.verify import certificate, checks
from tests.cli.conftest import Cli, _own_environment, cli
from tests.decoding.broken import AlwaysAcceptRule
from tests.engine.conftest import ModelFiles
from tests.support.adapters import lora
from tests.support.patches import fail_with
from tests.verify.conftest import LITTLE

__all__ = ["_own_environment", "cli"]


@pytest.fixture(autouse=True)
def _little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "QUICK", LITTLE)


@pytest.fixture
def pair(tiny_pair: ModelFiles) -> tuple[str, ...]:
    return ("-m", str(tiny_pair.target), "-d", str(tiny_pair.draft), "-c", "512")


@pytest.mark.nightly
def test_certificate_is_written_and_compared(
    cli: Cli, pair: tuple[str, ...], tiny_pair: ModelFiles, tmp_path: Path
) -> None:
    out = tmp_path / "proof"
    path = out / "certificate.json"
    result = cli("verify", *pair, "--quick", "--output", str(out))
    assert result.code == 0
    assert [line[:8] for line in result.out.splitlines() if line and line[0] != " "] == [
        "passed: ",
        *4 * ["passed  "],
    ]
    found = json.loads(path.read_text())
    assert [check["check"] for check in found["checks"]] == list(certificate.CHECKS)
    assert (found["verdict"], found["settings"]["sizes"]) == ("passed", [2, 4])
    assert [path.name for path in out.iterdir()] == ["certificate.json"]

    same = cli("verify", "--check", str(path), *pair)
    assert same.code == 0
    assert "for these files and versions" in same.out
    changed = ("-d", "none", "--kv-type", "q8_0", "--gpu-layers", "3", "--kernels", "off")
    other = cli("verify", "--check", str(path), *pair[:2], *changed, "--exact")
    assert other.code == 1
    state = "OTHER" if found["settings"]["kernels"].startswith("localspec") else "same "
    assert f"{state}   kernels: llama.cpp's" in other.out
    for one in ("draft model: none", "kv type: q8_0", "gpu layers: 3", "exact: True"):
        assert f"OTHER   {one}" in other.out
    adapter = str(lora(tmp_path / "style.gguf", tiny_pair.target))
    adapted = cli("verify", "--check", str(path), *pair, "--lora", adapter)
    assert adapted.code == 1
    assert "OTHER   adapters: " in adapted.out
    facts = cli("verify", "--check", str(path), *pair, "--json").json
    assert facts["about_this"]
    assert all(fact["same"] for fact in facts["facts"] if fact["decides"])

    path.write_text(path.read_text().replace('"accepted": 0', '"accepted": 9'))
    cli("verify", "--check", str(path), *pair).refused("was changed after it was written")


def test_broken_build_fails(
    cli: Cli, pair: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificate, "CHECKS", {"greedy": certificate.CHECKS["greedy"]})
    monkeypatch.setattr("localspec.decoding.rules.GreedyMatch", AlwaysAcceptRule)
    result = cli("verify", *pair, "--quick", "--json")
    assert result.code == 1
    found = result.json
    assert found["verdict"] == "failed"
    (parted, *_) = found["checks"][0]["figures"]["ways"]["model"]["divergences"]
    assert parted["gap"] is None or parted["gap"] > found["checks"][0]["figures"]["noise"]["most"]


def test_interrupt_keeps_finished_checks(
    cli: Cli, pair: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    interrupted = (fail_with(KeyboardInterrupt()), 0.7)
    monkeypatch.setitem(certificate.CHECKS, "sampled", interrupted)
    result = cli("verify", *pair, "--quick", "--output", str(tmp_path))
    assert result.code == 130
    found = json.loads((tmp_path / "certificate.json").read_text())
    assert found["verdict"] == "incomplete"
    assert [check["check"] for check in found["checks"]] == ["greedy"]
    assert found["missing"] == list(certificate.CHECKS)[1:]


def test_error_in_an_answer_is_a_fault(
    cli: Cli, pair: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = fail_with(ValueError("token 5 is not allowed here"))
    monkeypatch.setattr(certificate, "CHECKS", {"grammar": (failing, 1.0)})
    result = cli("verify", *pair, "--quick")
    assert result.code == 1
    assert "token 5 is not allowed here" in result.out
