"""Whatever is wrong is told in one sentence, with an exit code of its own and no traceback."""

import os
import re
import shutil
from pathlib import Path

import pytest

from localspec.errors import NativeError
from localspec.paths import EMBEDDED_TARGET, embedded
from localspec.prompting.detokenizer import Detokenizer
from tests.cli.conftest import Cli
from tests.cli.process import LOCALSPEC, finished
from tests.support.ggufs import aborting_llama
from tests.support.patches import fail_with


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        (b"", "is empty"),
        (b"\x7fELF and more of it than a header", "is not a GGUF file"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "git lfs pull"),
        (b"\n<!DOCTYPE html>\n<html>", "is a web page"),
        (b"Entry not found", "is a web page or an error of a server"),
        (b'{"error": "Repository not found"}', "an error of a server"),
        (b"PK\3\4" + bytes(40), "Unpack it"),
        (b"GGUF\0\0\0\3" + bytes(40), "big-endian"),
        (b"GGUF\x09\0\0\0" + bytes(40), "version 9"),
    ],
)
def test_a_file_that_is_no_gguf(cli: Cli, tmp_path: Path, content: bytes, cause: str) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    cli("run", "-m", str(path), "hi").refused(cause, code=4)


GAVE_UP = re.compile(
    r"localspec: llama\.cpp aborted: binary_op: unsupported types: dst: f32, src0: f32, src1: f16 "
    r"\(binary-ops\.cpp:\d+\)\. "
    r"The model file may be damaged: download it again, or choose another model\.\n"
)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "verb", [("run", "hi"), ("doctor", "--quick"), ("bench", "--quick", "--arms", "plain")]
)
def test_llama_cpp_gives_up_in_the_middle(verb: tuple[str, ...], tmp_path: Path) -> None:
    """What nobody could know of the file: a sentence all the same, and no core dump."""
    path = aborting_llama(tmp_path / "bad.gguf")
    result = finished(*verb, "-m", str(path), "-d", "none", "-t", "2")
    assert (result.code, result.out) == (1, "")
    assert GAVE_UP.fullmatch(result.err), result.err


@pytest.mark.nightly
@pytest.mark.parametrize("kilobytes", [450_000, 600_000, 4_000_000])
def test_lack_of_memory_is_no_damaged_file(kilobytes: int, tmp_path: Path) -> None:
    """A file that cannot be mapped is read, as from folders of virtual machines."""
    path = str(shutil.copy(embedded(EMBEDDED_TARGET), tmp_path))
    os.truncate(path, 16 << 30)
    limited = ("sh", "-c", f'ulimit -v {kilobytes}; exec "$@"', "sh", *LOCALSPEC)
    result = finished("run", "-m", path, "-n", "4", "hi", command=limited)
    told = kilobytes < 1e6 and "memory" in result.err and "damaged" not in result.err
    assert result.code == 0 or told, result.err


@pytest.mark.nightly
def test_jsonl_tells_that_llama_cpp_gave_up(tmp_path: Path) -> None:
    path = aborting_llama(tmp_path / "bad.gguf")
    result = finished("run", "hi", "--jsonl", "-m", str(path), "-d", "none", "-t", "1")
    assert result.code == 1
    last = result.events[-1]
    assert (last["event"], last["exit_code"]) == ("error", 1)
    assert "unsupported types" in last["message"]


def test_jsonl_has_errors_as_events_as_well(cli: Cli, tmp_path: Path) -> None:
    for options, code in ((("-m", str(tmp_path / "none.gguf")), 3), (("-n", "0"), 2)):
        result = cli("run", "--jsonl", *options, "hi")
        assert result.code == code
        (event,) = result.events
        assert event == {"event": "error", "message": result.sentence(), "exit_code": code}


def test_an_error_in_the_middle_of_an_answer_ends_its_line(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = NativeError("The fourth token failed. Try again.")
    failing = fail_with(error, after=3, before=Detokenizer.push)
    monkeypatch.setattr(Detokenizer, "push", failing)
    result = cli("run", "--temp", "0", "--drafter", "none", "Tell me a story.")
    assert (result.code, result.sentence()) == (1, "The fourth token failed. Try again.")
    assert len(result.out.split()) >= 3
    assert result.out.count("\n") == result.out.endswith("\n") == 1


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (ZeroDivisionError("division by zero"), "Internal error, ZeroDivisionError: division by"),
        (MemoryError(), "There is not enough memory"),
        (RuntimeError("can't start new thread"), "The system allows no further thread. Close"),
        (RuntimeError("Failed to load shared library 'a'"), "A part of localspec cannot be "),
        (FileNotFoundError("Shared library 'a' not found"), "A part of localspec cannot be "),
        (PermissionError(13, "Not allowed", "a/b"), "a/b cannot be opened: Not allowed. Check the"),
        (OSError(36, "Too long", "a/b"), "a/b cannot be opened: Too long. Check the path"),
        (OSError(24, "Too many", "a/b"), "The system allows no further open file. Close"),
    ],
)
def test_errors_nobody_foresaw(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, error: Exception, cause: str
) -> None:
    monkeypatch.setattr("localspec.load", fail_with(error))
    cli("run", "hi").refused(cause, code=1)

    detailed = cli("run", "-v", "hi")
    assert detailed.code == 1
    assert "Traceback (most recent call last)" in detailed.err


@pytest.mark.parametrize(
    ("verb", "replaced"),
    [
        (("history", "list"), "localspec.cli.history.open_history"),
        (("chat",), "localspec.cli.chat._shown"),
    ],
)
def test_internal_errors_of_verbs_without_v_show_where(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, verb: tuple[str, ...], replaced: str
) -> None:
    monkeypatch.setattr(replaced, fail_with(ZeroDivisionError("division by zero")))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    result = cli(*verb)
    assert (result.code, result.out) == (1, "")
    assert "-v" not in result.err
    assert "division by zero. Please report it, with these lines:\nTraceback (most" in result.err
