"""Opening files: errors of llama.cpp, facts and vocabularies."""

import logging
from pathlib import Path

import llama_cpp
import pytest

from localspec import ModelInvalid, ModelOptions
from localspec.llama import library
from localspec.llama.context import Context
from localspec.llama.model import Model
from tests.cli.process import run_python
from tests.gguf.raw import write_model

OPTIONS = ModelOptions(context=64)


def test_errors_of_llama_cpp_are_one_printable_line(tmp_path: Path) -> None:
    """They may quote the file, and name functions."""
    path = write_model(tmp_path / "odd.gguf", architecture="one\ntwo\x1b[31m" + 2000 * "x")
    with pytest.raises(ModelInvalid) as caught:
        Model(path, OPTIONS)
    error = library.first_error()
    assert error.startswith("unknown model architecture: 'one two")
    assert error.isprintable()
    assert error in str(caught.value)
    assert len(error) <= 1000
    library.clear_errors()
    assert library.first_error() == "llama.cpp gave no reason"


def test_tokenization_keeps_the_text(model: Model) -> None:
    vocabulary = model.vocabulary
    for text in ("Once upon a time.", "  two  spaces\n\ttab", "naïve – 日本語 🦊", ""):
        ids = vocabulary.tokenize(text)
        assert b"".join(vocabulary.piece(token) for token in ids).decode() == text
    marker = vocabulary.tokenize("<|end|>", special=True)
    assert len(marker) == 1
    assert vocabulary.ends(marker[0])
    assert vocabulary.piece(marker[0]) == b""
    assert vocabulary.special_text(marker[0]) == "<|end|>"
    assert len(vocabulary.tokenize("<|end|>")) > 1
    assert vocabulary.tokenize("a", add_bos=True)[0] == vocabulary.bos
    turn = "<|end|> a\n<|user|>  b<|end"
    many = vocabulary.tokenize(turn * 999, special=True, add_bos=True)
    assert many == [vocabulary.bos, *vocabulary.tokenize(turn, special=True) * 999]
    surrogate = vocabulary.tokenize("a\ud800b")
    assert b"".join(map(vocabulary.piece, surrogate)) == b"a?b"


def test_model_is_closed_while_another_thread_tokenizes(
    target_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, tokenize = Model(target_path, OPTIONS, vocabulary_only=True), llama_cpp.llama_tokenize

    def close_and_tokenize(*given: object) -> object:
        model.close()
        return tokenize(*given)

    monkeypatch.setattr(llama_cpp, "llama_tokenize", close_and_tokenize)
    assert model.vocabulary.tokenize("The fox.")


def test_native_log_goes_to_logging_only(
    target_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.DEBUG, "localspec.llama"), Model(target_path, OPTIONS) as model:
        Context.open(model, OPTIONS).close()
    assert any("tale-13m" in record.message for record in caplog.records)
    assert {record.name for record in caplog.records} == {"localspec.llama"}
    assert capfd.readouterr() == ("", "")


@pytest.mark.nightly
def test_native_log_is_captured_before_devices_are_listed() -> None:
    """GPU drivers print then, before a model is opened."""
    list_devices = "from localspec.llama import devices, ggml; devices.devices(); "
    fail = "ggml.libggml.ggml_backend_load(b'/nowhere/libggml-none.so')"
    done = run_python(list_devices + fail)
    assert (done.code, done.out, done.err) == (0, "", "")
