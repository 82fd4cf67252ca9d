"""The help texts: complete, uncut at 80 columns, and quick to print."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import typer

from localspec import errors
from localspec.cli.main import app
from localspec.cli.output import OutputLost, ReaderGone
from localspec.cli.verbs import VERBS, build_command
from localspec.decoding.rules import LOSSLESS, LOSSY
from localspec.llama.options import FLASH_ATTENTION, KV_TYPES
from localspec.settings import NAMES, PREFIX
from tests.cli.conftest import Cli
from tests.cli.process import finished, patched

HEAVY = {"llama_cpp", "textual", "numpy", "jinja2", "pydantic", "rich"}


@pytest.mark.nightly
@pytest.mark.parametrize("command", ["", "--version", "--help", "run --help", "doctor --paths"])
def test_only_the_requested_verb_is_imported(command: str) -> None:
    program = "import json; main(sys.argv[1:]); sys.exit(json.dumps(sorted(sys.modules)))"
    loaded = set(json.loads(finished(*command.split(), command=patched(program)).err))
    assert not HEAVY & loaded
    places = {f"localspec.cli.{verb}": verb for verb in VERBS}
    assert {places[name] for name in loaded if name in places} == {*command.split()} & {*VERBS}


def test_summary_is_shown_without_docstrings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("localspec.cli.run.run.__doc__", None)  # as `python -OO` has it
    assert build_command("run").help == VERBS["run"]


@pytest.mark.parametrize("verb", [(), *((verb,) for verb in VERBS), ("history", "list")])
@pytest.mark.parametrize("option", ["--help", "--help-all"])
def test_help_fits_80_columns_and_cuts_no_name(
    verb: tuple[str, ...], option: str, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = cli(*verb, option)
    if verb == ("run",) and option == "--help":
        assert 14 <= shown.out.count("\n  -") <= 20, "the common options"
    command: Any = build_command(verb[0]) if verb else typer.main.get_command(app)
    if len(verb) > 1:
        command = command.commands[verb[1]]
    hides = [p for p in command.params if getattr(p, "hidden", False)]
    assert shown.code == 0
    assert max(len(line) for line in shown.out.splitlines()) <= 80
    rows = [line for line in shown.out.splitlines() if line.startswith("  -")]
    words = " ".join(rows).replace(",", " ").split()
    for param in command.params:
        if param.param_type_name == "option":
            seen = param.opts[-1] in words
            assert seen == (option == "--help-all" or param not in hides), param.name
            assert ("--output" in param.opts) == param.help.startswith("Write "), param.name


def test_every_exit_code_is_documented(cli: Cli) -> None:
    shown = cli("--help")
    assert shown.code == 0
    table = shown.out.split("Exit codes:")[1]
    codes = {int(line.split()[0]) for line in table.splitlines() if line.strip()}
    found = [getattr(kind, "exit_code", None) for kind in vars(errors).values()]
    told = {code for code in found if code is not None}
    assert codes == {0, *told, OutputLost.exit_code, ReaderGone.exit_code}
    page = (Path(__file__).parents[2] / "docs" / "run.md").read_text(encoding="utf-8")
    listed = page.split("Exit codes:")[1].split("\n\n")[0]
    assert all(re.search(rf"\b{code} \w", listed) for code in codes)


@pytest.mark.parametrize("verbs", [(), ("history",)])
def test_no_verb_prints_help(cli: Cli, verbs: tuple[str, ...]) -> None:
    result = cli(*verbs)
    assert (result.code, result.err) == (2, "")
    assert result.out.startswith(f"Usage: {' '.join(('localspec', *verbs))} [OPTIONS] COMMAND")


def test_options_without_a_verb_belong_to_chat(cli: Cli) -> None:
    refused = cli("--temp", "0")  # for here is no terminal
    assert refused == cli("chat", "--temp", "0")
    refused.refused("'localspec chat' needs a terminal. Use 'localspec run' to answer piped text.")
    assert "localspec chat --help" in cli("--no-such-option").sentence()


def test_help_names_every_choice(cli: Cli) -> None:
    text = " ".join(cli("run", "--help-all").out.split())
    for name in ("auto", "none", "ngram", "model", *LOSSLESS, *LOSSY, *KV_TYPES, *FLASH_ATTENTION):
        assert name in text, name
    (kinds,) = [one for one in build_command("run").params if one.name == "kv_type"]
    assert [one.value for one in kinds.shell_complete(None, "q5")] == ["q5_1", "q5_0"]
    for name in set(NAMES) - {"model_folders"}:
        assert f"({PREFIX}{name.upper()})" in text, name


@pytest.mark.parametrize("verb", ["eval", "race"])
def test_greedy_verbs_document_their_default(cli: Cli, verb: str) -> None:
    _, _, described = cli(verb, "--help").out.partition("--temperature X ")
    assert "0, the default, is greedy" in " ".join(described.split())
