"""Any value of any option is refused in words or works: no internal error, no endless wait."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants
from hypothesis import given
from hypothesis import strategies as st

import localspec
from localspec.cli.verbs import VERBS, build_command
from localspec.settings import Settings
from tests.cli.conftest import Cli, Result
from tests.cli.process import LOCALSPEC, environment, finished
from tests.support.toys import examples

EXAMPLES = 150
AFTER = {"run": ["hi"], "race": ["hi"], "pull": ["--offline", "none/at-all"], "rm": ["none.gguf"]}
NO_MODEL = ("list", "show", "models", "history", "pull", "rm")
CODES = {0, 1, 2, 3, 4, 5, 6}


def _options() -> list[tuple[str, str]]:
    found = [
        (verb, max(one.opts, key=len))
        for verb in VERBS
        for one in build_command(verb).params
        if one.param_type_name == "option" and not getattr(one, "is_flag", False)
    ]
    return [(verb, name) for verb, name in found if name not in ("--verbose", "--model")]


@pytest.fixture(scope="module")
def odd_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("odd")
    os.mkfifo(folder / "pipe")
    (folder / "folder").mkdir()
    (folder / "empty").touch()
    (folder / "bytes").write_bytes(b"\xff\xfe\0")
    (folder / "deep").write_text('{"a":' * 10_000)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        # Whatever is removed is nobody's.
        patch.setenv("HF_HUB_CACHE", str(folder / "hub"))
        patch.setattr(constants, "HF_HUB_CACHE", str(folder / "hub"))
        yield folder


FILES = ("pipe", "folder", "empty", "bytes", "deep", "/dev/zero", "/dev/null", "none/at/all")
NUMBERS = (
    *("nan", "inf", "-inf", "1e-320", "-1e-320", "1e400", "-0.0", "-1", "0"),
    *("9" * 5000, "1" + "0" * 30, "0x10", "1_0", "٣"),
)
TEXTS = ("", " ", "\udcff", "\ud800", "x" * 5000, "\x1b[31m", "a=b", "1=nan", "~nobody/x", "☃", ",")
ODD = st.one_of(
    st.sampled_from((*FILES, *(f"@{name}" for name in FILES), *NUMBERS, *TEXTS)),
    st.text(st.characters(exclude_characters="\0"), max_size=12),
    st.integers().map(str),
    st.floats().map(str),
)


@examples(EXAMPLES)
@given(option=st.sampled_from(_options()), value=ODD)
def test_odd_values_of_options(
    cli: Cli, odd_files: Path, option: tuple[str, str], value: str
) -> None:
    verb, name = option
    # Whatever is no mistake ends at the model, or at the terminal, which are not there.
    wants = [] if verb in NO_MODEL else ["-m", "none.gguf"]
    works_or_is_refused(cli(verb, *AFTER.get(verb, ()), *wants, f"{name}={value}", stdin=b"text"))


def works_or_is_refused(result: Result) -> None:
    assert result.code in CODES
    assert not any(words in result.err for words in ("Internal error", "Traceback")), result.err


ARGUMENTS = (
    *(("pull", "--offline"), ("pull", "--offline", "x/y", "--draft"), ("rm", "--yes"), ("show",)),
    *(("history", verb) for verb in ("show", "export", "search")),
    *(("history", "rm", "--yes"), ("history", "list", "--limit"), ("history", "export", "-f")),
    *(("models",), ("run", "-m"), ("chat", "-m"), ("serve", "-m"), ("learn", "-m", "none.gguf")),
)


@examples(EXAMPLES // 2)
@given(arguments=st.sampled_from(ARGUMENTS), value=ODD)
def test_odd_names(cli: Cli, odd_files: Path, arguments: tuple[str, ...], value: str) -> None:
    works_or_is_refused(cli(*arguments, value, stdin=b"text"))


VARIABLES = (
    *(f"LOCALSPEC_{name.upper()}" for name in Settings.model_fields),
    *("LOCALSPEC_HOME", "LOCALSPEC_KERNELS", "LOCALSPEC_API_KEY", "LOCALSPEC_NOBODY", "HF_TOKEN"),
    *("LLAMA_CACHE", "OLLAMA_MODELS", "XDG_CACHE_HOME", "HF_HUB_OFFLINE", "COLUMNS", "TERM"),
    *("NO_COLOR", "FORCE_COLOR", "LANG", "OMP_NUM_THREADS", "COLORFGBG"),
)


@examples(EXAMPLES // 2)
@given(
    name=st.sampled_from(VARIABLES),
    value=ODD.filter(lambda value: "\0" not in value and "\ud800" not in value),
    arguments=st.sampled_from(
        (("run", "-m", "none.gguf", "hi"), ("list",), ("models",), ("history", "list"), ("serve",))
    ),
)
def test_odd_environments(
    cli: Cli, odd_files: Path, name: str, value: str, arguments: tuple[str, ...]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        try:
            patch.setenv(name, value)
        except UnicodeEncodeError:
            return  # no process can have that
        model = ["-m", "none.gguf"] if arguments == ("serve",) else []
        works_or_is_refused(cli(*arguments, *model, stdin=b"text"))


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("option", ["-m", "-d", "--grammar", "--json-schema", "--session"])
def test_odd_files(cli: Cli, odd_files: Path, option: str, name: str) -> None:
    result = cli("run", "-n", "1", "--temp", "0", option, name, "hi")
    works_or_is_refused(result)
    assert result.code or (option, name) == ("--session", "none/at/all")


@pytest.mark.parametrize("option", ["--session", "--grammar", "--json-schema", "--mmproj"])
def test_empty_names_of_files(cli: Cli, option: str) -> None:
    """As of a variable of a shell that is not set, which would name the current folder."""
    cli("run", option, "", "hi").refused(f"{option} is empty. Leave it out, or ")
    cli("learn", "").refused("PATH is empty. Leave it out, or ")
    cli("distill", "").refused("PROMPTS is empty. Leave it out, or ")
    cli("run", "-d", "", "hi").refused("draft is empty. Leave it out, or ")


def test_counts_that_no_database_takes(cli: Cli) -> None:
    many = "9" * 20
    for verb in (("list",), ("search", "fox")):
        cli("history", *verb, "--limit", many).refused(f"{many}. Give a smaller number.")


def test_errors_about_names_with_line_ends(cli: Cli, tmp_path: Path) -> None:
    odd = tmp_path / "a\nb.gguf"
    odd.write_bytes(b"GGUF")
    assert cli("run", "-m", str(odd), "hi").sentence().startswith(f"{tmp_path}/a b.gguf ends in")


@pytest.mark.nightly
def test_where_no_locale_is_utf_8() -> None:
    env = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    for more in ({}, {"PYTHONIOENCODING": "latin-1"}):
        command = ("run", "-q", "--grammar", 'root ::= "☃ é🦊"', "☃?")
        result = finished(*command, env=environment(**env, **more))
        assert (result.out, result.err) == ("☃ é🦊\n", "")


GONE = "localspec: The current folder is gone. Change to another one.\n"


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("arguments", "code", "told"), [("run -q -d none -n 2 hi", 0, ""), ("learn -m demo .", 1, GONE)]
)
def test_a_folder_that_is_gone(tmp_path: Path, arguments: str, code: int, told: str) -> None:
    gone = ("sh", "-c", f'cd {tmp_path} && rmdir {tmp_path} && exec "$@"', "sh", *LOCALSPEC)
    here = environment(PYTHONPATH=str(Path(localspec.__file__).parents[1]))
    result = finished(*arguments.split(), command=gone, env=here)
    assert (result.code, result.err) == (code, told)


def test_a_text_may_come_from_the_pipe_of_a_shell(cli: Cli) -> None:
    grammar, write = os.pipe()
    os.write(write, b'root ::= "a fox"')
    os.close(write)
    try:
        assert cli("run", "-q", "--grammar", f"@/dev/fd/{grammar}", "hi").out == "a fox\n"
    finally:
        os.close(grammar)
