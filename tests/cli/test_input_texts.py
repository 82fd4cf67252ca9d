"""Where the prompt comes from."""

import io

import pytest

from localspec.cli.input_texts import read_prompt, require_texts
from tests.cli.conftest import Cli


@pytest.mark.parametrize(
    ("data", "argument", "prompt"),
    [
        (b"some text\n", "Summarise it.", "some text\n\nSummarise it."),
        *((b"some text\n", None, "some text"), (b"some text\r\n", "-", "some text")),
        *((b"two\n\n", None, "two\n"), (b"", "alone", "alone"), (b"\n", "alone", "alone")),
        (b"\xef\xbb\xbfwith a mark", None, "with a mark"),
        ("Füchse 🦊".encode(), None, "Füchse 🦊"),
    ],
)
def test_piped_text_comes_before_the_argument(
    data: bytes, argument: str | None, prompt: str
) -> None:
    assert read_prompt(argument, io.TextIOWrapper(io.BytesIO(data))) == prompt


def test_escapes_in_stop_strings() -> None:
    assert require_texts([r"\n\t|\\n|\end"], "--stop", escapes=True) == ("\n\t|\\n|\\end",)


def test_piped_text_reaches_the_model(cli: Cli) -> None:
    options = ("run", "-n", "4", "--json", "--temp", "0")
    joined = cli(*options, "A fox.\n\nGo on.").json
    assert cli(*options, "Go on.", stdin=b"A fox.\n").json["text"] == joined["text"]
    assert cli(*options, stdin=b"A fox.\n\nGo on.\n").json["text"] == joined["text"]
    # A terminal is read only when that is asked for.
    assert cli(*options, "-", typed="A fox.\n\nGo on.\n").json["text"] == joined["text"]
    assert cli(*options, "A fox.\n\nGo on.", typed="No.").json["text"] == joined["text"]


@pytest.mark.parametrize(
    ("arguments", "stdin", "cause"),
    [
        ((), None, "There is no prompt"),
        *(((), b"", "The prompt is empty"), (("",), None, "The prompt is empty")),
        *(((" \n",), None, "The prompt is empty"), (("-",), b"", "The prompt is empty")),
        ((), b"good, then \xff bad", "Standard input is not UTF-8: byte 11"),
        ((), b"\xff\xfeh\x00i\x00", "for example with iconv -f UTF-16"),
        ((), b"text\x00binary", "it has a NUL at byte 4"),
        (("caf\udce9",), None, "The prompt is not UTF-8: byte 3"),
    ],
)
def test_missing_and_invalid_prompts(
    cli: Cli, arguments: tuple[str, ...], stdin: bytes | None, cause: str
) -> None:
    cli("run", *arguments, stdin=stdin).refused(cause)
