"""What `--help` says, and how little it loads for that."""

from __future__ import annotations

import json
import sys

import pytest
import typer

from localspec import errors
from localspec.cli.main import app
from localspec.cli.output import OutputLost, ReaderGone
from localspec.cli.verbs import VERBS
from localspec.decoding.rules import LOSSLESS, LOSSY
from localspec.drafters.registry import REGISTRY
from localspec.llama.options import FLASH_ATTENTION, KV_TYPES
from localspec.settings import FLAGS, PREFIX
from tests.cli.conftest import Cli
from tests.cli.process import finished

HEAVY = {"llama_cpp", "textual", "numpy", "jinja2", "pydantic_settings"}


@pytest.mark.parametrize("arguments", [("--help",), ("run", "--help"), ("--version",), ()])
def test_help_loads_no_native_code(arguments: tuple[str, ...]) -> None:
    program = (
        "import json, sys; from localspec.cli.main import main; "
        "main(sys.argv[1:]); json.dump(sorted(sys.modules), sys.stderr)"
    )
    result = finished(*arguments, command=(sys.executable, "-c", program))
    loaded = set(json.loads(result.stderr))
    assert "localspec.cli.main" in loaded
    assert not HEAVY & loaded


@pytest.mark.parametrize(
    ("arguments", "verbs"),
    [(("--version",), set()), (("run", "--help"), {"run"}), (("paths",), {"paths"})],
)
def test_no_verb_is_imported_but_the_one_that_is_asked_for(
    arguments: tuple[str, ...], verbs: set[str]
) -> None:
    program = (
        "import json, sys; from localspec.cli.main import main; "
        "main(sys.argv[1:]); json.dump(sorted(sys.modules), sys.stderr)"
    )
    result = finished(*arguments, command=(sys.executable, "-c", program))
    places = {place.partition(":")[0]: verb for verb, place in VERBS.items()}
    assert {places[name] for name in json.loads(result.stderr) if name in places} == verbs


def test_a_verb_goes_by_the_name_that_it_is_listed_by() -> None:
    group = typer.main.get_command(app)
    assert [command.name for command in group.commands.values()] == list(VERBS)  # type: ignore[attr-defined]


def test_importing_the_package_loads_no_native_code() -> None:
    program = "import json, sys, localspec; json.dump(sorted(sys.modules), sys.stdout)"
    result = finished(command=(sys.executable, "-c", program))
    loaded = set(json.loads(result.stdout))
    assert "localspec" in loaded
    assert not HEAVY & loaded


def test_every_exit_code_is_documented(cli: Cli) -> None:
    shown = cli("--help")
    assert shown.code == 0
    codes = {int(line.split()[0]) for line in shown.out.splitlines() if line.strip()[:1].isdigit()}
    found = [getattr(kind, "exit_code", None) for kind in vars(errors).values()]
    told = {code for code in found if code is not None}
    assert codes == {0, *told, OutputLost.exit_code, ReaderGone.exit_code}


def test_without_a_verb_there_is_help(cli: Cli) -> None:
    result = cli()
    assert (result.code, result.err) == (2, "")
    assert "Usage: localspec [OPTIONS] COMMAND" in result.out


def test_every_option_is_explained_and_grouped() -> None:
    group = typer.main.get_command(app)
    command = group.commands["run"]  # type: ignore[attr-defined]
    options = [p for p in command.params if p.param_type_name == "option" and p.name != "help"]
    assert len(options) >= 39
    for option in options:
        assert option.help.endswith((".", ")")), option.name
        assert option.rich_help_panel, option.name


def test_help_names_every_choice(cli: Cli) -> None:
    text = " ".join(cli("run", "--help").out.replace("│", " ").split())
    for name in ("auto", "none", *REGISTRY, *LOSSLESS, *LOSSY, *KV_TYPES, *FLASH_ATTENTION):
        assert name in text, name
    for name in FLAGS:
        assert f"({PREFIX}{name.upper()})" in text, name


def test_help_is_plain_when_piped(cli: Cli) -> None:
    assert "\x1b" not in cli("run", "--help").out
    assert "\x1b" not in cli("--help").out
