"""`localspec doctor`: verdicts, what is measured, and what is kept of it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from shutil import copyfile

import pytest

import localspec
from localspec import ModelOptions, paths
from localspec.cli import work
from localspec.doctor import checkup
from localspec.doctor.checkup import PairMeasurements, TextKind, device_checks, measure_pair
from localspec.gguf.dimensions import n_layers
from localspec.gguf.reader import read_gguf
from localspec.llama import kernels
from localspec.llama.devices import Device, devices
from localspec.pairing import auto
from localspec.pairing.memory import place
from localspec.policy.store import folder as measurements
from tests.cli.conftest import Cli
from tests.support import heads
from tests.support.ggufs import sized_llama, tiny_bert, tiny_llama
from tests.support.homes import move_to
from tests.support.mtp import glm

pytestmark = pytest.mark.nightly


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(checkup, "QUICK", 3.0)
    return move_to(tmp_path, monkeypatch)


def test_the_embedded_pair(cli: Cli) -> None:
    result = cli("doctor", "--quick", "--json")
    told = result.json
    assert (result.code, result.err, told["usable"], told["why_not"]) == (0, "", True, None)
    machine = told["machine"]
    assert machine["threads"] == 1
    assert "CPU" in machine["backends"]
    assert machine["kernels"]["in_use"] == kernels.status().in_use
    assert machine["memory"] >= machine["available_memory"] > 0
    assert (told["target"]["name"], told["draft"]["name"]) == ("tale-13m-q8_0", "tale-3m-q8_0")
    verdicts = {check["rule"]: check["verdict"] for check in told["checks"]}
    for rule in ("token ids", "context", "memory", "target produces text"):
        assert verdicts[rule] == "ok"
    found = told["calibration"]
    assert set(found["curve"]) == set("123456789")
    assert found["cost"] == found["draft_seconds"] / found["curve"]["1"]
    assert not found["partial"]
    # What the planner measured and learned is there for the next session.
    assert len(list(measurements().iterdir())) >= 1


def test_plain_llama_cpp_is_measured_again(cli: Cli) -> None:
    """The first figure may be of a moment when the machine was busy."""
    found = cli("doctor", "--quick", "--json").json["calibration"]["stock"]
    for file in measurements().iterdir():
        file.write_text(file.read_text().replace(f'"stock": {found}', '"stock": 7777.0'))
    assert cli("doctor", "--quick", "--json").json["calibration"]["stock"] != 7777.0


def test_as_text(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkup, "LONG", 3.0)
    result = cli("doctor")
    assert (result.code, result.err) == (0, "")
    verdict = result.out.splitlines()[0]
    assert "worth drafting with" in verdict or "machine was busy" in verdict
    for words in (
        "machine         ",
        "backends        CPU",
        f"kernels         {kernels.status().words}"[:40],
        "target          tale-13m-q8_0, 12.9 M Q8_0: ",
        "draft           tale-3m-q8_0, 2.9 M Q8_0: ",
        "ok    token ids",
        "target pass     ",
        "draft pass      ",
        "Calibrated in ",
    ):
        assert words in result.out
    assert result.out.replace("\n", "").isprintable()


def test_a_quick_report_fits_a_small_terminal(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    result = cli("doctor", "--quick")
    assert result.out.count("\n") < 24
    for words in ("worth drafting with", "kernels   ", "draft   ", "ok    tok", "target pass   "):
        assert words in result.out or (words.startswith("worth") and "was busy" in result.out)


def test_what_is_not_there_at_all(cli: Cli, here: Path) -> None:
    for option in ("-m", "-d"):
        cli("doctor", option, "missing.gguf").refused("no file", code=3)
    tiny_bert(here / "bert.gguf")
    cli("doctor", "-m", "bert.gguf").refused("cannot be used: it is an embedding model", code=4)


def test_without_a_draft_it_says_what_auto_would_take(cli: Cli) -> None:
    told = cli("doctor", "--quick", "-d", "none", "--json").json
    assert (told["draft"], told["calibration"]["draft_seconds"]) == (None, None)
    assert told["why_draft"] == "none was given; -d auto would take tale-3m-q8_0"


def test_a_model_that_predicts_ahead_drafts_for_itself(cli: Cli, here: Path) -> None:
    """As `run` has it: no second file is looked for."""
    path = glm(here / "ahead.gguf")
    told = cli("doctor", "--quick", "-m", str(path), "--json").json
    assert told["draft"]["path"] == str(path)
    assert "own MTP layers" in told["why_draft"]
    assert "smaller" not in {check["rule"] for check in told["checks"]}


def test_a_trained_head_is_measured(cli: Cli, here: Path) -> None:
    result = cli("doctor", "--quick", "-d", str(heads.eagle(here / "head.gguf")), "--json")
    told = result.json
    assert (result.code, told["draft"]["name"], told["usable"]) == (0, "head", True)
    assert told["calibration"]["draft_seconds"] > 0
    tiny_llama(here / "other.gguf")
    refused = cli("doctor", "--quick", "-m", "other.gguf", "-d", "head.gguf")
    refused.refused("head of another model", code=5)
    command = ("run", "-m", "demo", "-d", "head.gguf", "--drafter", "model", "hi")
    cli(*command).refused("Use --drafter eagle, or auto")


def test_an_interrupt_ends_it(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def at_once(signals: Sequence[int], handler: Callable[[int, None], None]) -> Iterator[None]:
        handler(signals[0], None)
        yield

    monkeypatch.setattr(work, "handle_signals", at_once)
    result = cli("doctor")
    assert result.code == 130
    assert "Interrupted" in result.err


def test_a_calibration_that_is_stopped_has_what_there_is(draft_path: Path) -> None:
    told: list[str] = []
    with localspec.load(draft=draft_path, context=1024, threads=1) as pair:
        found = measure_pair(pair, 30.0, report=told.append, stopped=lambda: len(told) > 2)
    assert (found.partial, [kind.name for kind in found.kinds]) == (True, ["story"])
    assert told[:2] == ["measuring what passes cost", "speed in story"]
    assert found.kinds[0].speed_up is not None


KINDS = (
    TextKind("story", 10, 8, [20.0, 2.0], [20.0, 1.0]),
    TextKind("math", 10, 4, [10.0, 1.2], [10.0, 1.0]),
    TextKind("qa", 10, 5),
)


def _calibration(kinds: tuple[TextKind, ...] = KINDS, *, steady: bool = True) -> PairMeasurements:
    return PairMeasurements(
        curve={1: 0.01},
        draft_seconds=0.002,
        cost=0.2,
        kinds=kinds,
        threads="1, as requested",
        seconds=3.0,
        partial=False,
        steady=steady,
    )


def test_the_recommendation_is_the_mean_gain() -> None:
    found = _calibration()
    assert found.gains == {"story": 2.0, "math": 1.2}
    assert [kind.acceptance for kind in found.kinds] == [0.8, 0.4, 0.5]
    assert found.trusted == pytest.approx(2.4**0.5)


@pytest.mark.parametrize("elsewhere", [False, True])
def test_it_says_whether_auto_takes_the_draft(
    cli: Cli, here: Path, tmp_path_factory: pytest.TempPathFactory, elsewhere: bool
) -> None:
    target = sized_llama(here / "t.gguf", layers=2)
    draft = (tmp_path_factory.mktemp("elsewhere") if elsewhere else here) / "d.gguf"
    copyfile(paths.embedded(paths.EMBEDDED_DRAFT), draft)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkup, "measure_pair", lambda *_, **__: _calibration())
        asked = ("--json", "--kernels", "off", "-m", str(target), "-d", str(draft))
        found = cli("doctor", "--quick", *asked).json  # "off" lowers forecasts of other drafts
    with localspec.load(target, options=ModelOptions(threads=1, kernels="off")) as engine:
        taken = engine.draft_path == draft and "measured 1.55×" in (engine.why_draft or "")
    assert taken is not elsewhere
    assert ("will take it" in found["recommendation"]["sentence"]) is taken


def test_a_result_that_cannot_be_kept(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkup, "measure_pair", lambda *_, **__: _calibration())
    monkeypatch.setattr(auto.speed_ups, "write", lambda _: None)
    assert "The result cannot be saved in" in cli("doctor", "--quick").err


def test_figures_of_a_busy_machine_are_not_kept() -> None:
    assert _calibration(steady=False).trusted is _calibration(()).trusted is None
    for slow in ([20.0, 7.0], [20.0, 1.0]), ([20.0, 2.0], [20.0, 7.0]):
        assert _calibration((KINDS[0], TextKind("code", 0, 0, *slow))).trusted is None


def _gpu(free: int) -> Device:
    return Device("CUDA0", "A \x1b[31mGPU", "GPU", free, 2 * free)


def test_what_fits_on_a_device(target_path: Path, draft_path: Path) -> None:
    target, draft, use = read_gguf(target_path), read_gguf(draft_path), ModelOptions(context=512)
    (check,) = device_checks(target, draft, use, [_gpu(1 << 30), *devices()])
    assert (check.verdict, check.next_step) == ("ok", None)
    assert "Everything fits" in check.evidence
    assert check.rule.isprintable()

    whole = place(target, use, -1).device.total
    (check,) = device_checks(target, draft, use, [_gpu(int(0.7 * whole))])
    assert check.verdict == "warn"
    assert f"of {n_layers(target) + 1} layers of the target fit" in check.evidence
    assert "--gpu-layers " in (check.next_step or "")
    (check,) = device_checks(target, None, use, [_gpu(int(0.7 * whole))])
    assert "--draft-gpu-layers" not in (check.next_step or "")
