"""`localspec bench`: a real run on the built-in pair, and refusals."""

import json
import os
from pathlib import Path

import pytest

from localspec.bench.arms import LocalspecArm
from tests.bench.samples import read
from tests.cli.conftest import Cli
from tests.cli.process import finished
from tests.support.patches import fail_with, files_of_at_most

pytestmark = pytest.mark.nightly

TINY = ("bench", "--quick", "--suite", "story", "--suite", "copy", "-n", "16", "-c", "512")


def test_a_tiny_run(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    output = tmp_path / "new" / "report"
    result = cli(*TINY, "--arms", "plain,auto,cold,trees", "--temp", "0", "--output", str(output))
    assert result.code == 0, result.err
    lines = result.out.splitlines()
    assert lines[0].startswith("built-in pair: localspec is ")
    assert max(map(len, lines)) <= 80
    assert "\x1b" not in result.out
    for arm in ("plain", "auto", "auto, cold", "model depth 3 width 2"):
        assert any(line.startswith(arm) for line in lines)
    assert "localspec: note: The report is in" in result.err
    report = read((output / "report.json").read_text("utf-8"))
    (pair,) = report.pairs
    assert len(pair.samples) == 10
    assert {sample.suite for sample in pair.samples} == {"story", "copy"}
    for sample in pair.samples:
        assert sample.tokens <= 15
        assert sample.seconds > 0
        assert sample.arm != "plain" or sample.passes == sample.tokens
        assert "width" not in sample.arm or (sample.tested and sample.drafted)
    assert report.command.startswith("localspec bench ")
    assert "--suite story --suite copy" in report.command
    assert pair.dropped == {}
    assert "\nSettings: turns 1" in (output / "report.txt").read_text("utf-8")


def test_json_and_a_file_of_prompts(cli: Cli, tmp_path: Path) -> None:
    prompts = tmp_path / "mine.jsonl"
    prompts.write_text('{"prompt": "Once upon a time"}\n', encoding="utf-8")
    command = ("bench", "--quick", "-c", "512", "--prompts", str(prompts))
    result = cli(*command, "-n", "8", "--arms", "plain,depths", "--temp", "0.8", "--json")
    samples = read(result.succeeded()).pairs[0].samples
    arms = {"plain", *(f"model depth {depth}" for depth in range(1, 9))}
    assert {(each.suite, each.temperature) for each in samples} == {("mine", 0.8)}
    assert sorted(each.arm for each in samples) == sorted(arms)
    (line, *_) = cli(*command, "-n", "1", "--arms", "plain,auto").out.splitlines()
    assert line.endswith("speed was measured, as every answer ended at once. Give other --prompts.")


def test_an_interrupt_leaves_a_partial_report(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Among these answers are those before the first that counts.
    stops = fail_with(KeyboardInterrupt(), after=5, before=LocalspecArm.generate)
    monkeypatch.setattr(LocalspecArm, "generate", stops)
    (tmp_path / "report.json").write_text("earlier")
    result = cli(*TINY, "--arms", "plain,auto", "--output", str(tmp_path))
    assert result.code == 130
    assert "the report covers the results so far" in result.err
    report = read((tmp_path / "report.json").read_text("utf-8"))
    assert report.partial
    assert len(report.pairs[0].samples) == 1
    assert "interrupted" in (tmp_path / "report.txt").read_text("utf-8")
    assert [path.read_text() for path in tmp_path.glob("report-*.json")] == ["earlier"]


def test_an_output_folder_that_cannot_be_is_told_before_the_run(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cli("bench", "--output", str(tmp_path / "file")).refused("--output", code=1)


def test_a_full_disk_does_not_cost_the_result(cli: Cli, tmp_path: Path) -> None:
    with files_of_at_most(500):
        result = cli(*TINY, "--arms", "plain", "--temp", "0", "--output", str(tmp_path))
    assert result.code == 1
    assert "report.json cannot be written: File too large" in result.sentence()
    assert "plain" in result.out
    assert list(tmp_path.iterdir()) == []


def test_a_reader_that_has_enough_does_not_cost_the_files(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as pipe:
        arguments = (*TINY, "--arms", "plain", "--temp", "0", "--output", str(tmp_path), "-q")
        result = finished(*arguments, stdout=pipe)
    assert (result.code, result.err) == (141, "")
    assert json.loads((tmp_path / "report.json").read_text())["pairs"]
