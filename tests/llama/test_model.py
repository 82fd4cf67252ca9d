"""Opening files: what llama.cpp says of them, in a sentence, and the text of their tokens."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from localspec import ModelInvalid, ModelOptions
from localspec.llama import library
from localspec.llama.context import Context
from localspec.llama.model import Model
from tests.gguf.raw import write_model

OPTIONS = ModelOptions(context=64)


def test_what_llama_cpp_says_is_one_printable_line(tmp_path: Path) -> None:
    """It may quote from the file, and names its functions."""
    path = write_model(tmp_path / "odd.gguf", architecture="one\ntwo\x1b[31m" + 2000 * "x")
    with pytest.raises(ModelInvalid) as caught:
        Model(path, OPTIONS)
    said = library.first_error()
    assert said.startswith("unknown model architecture: 'one two")
    assert said.isprintable()
    assert said in str(caught.value)
    assert len(said) <= 1000
    library.clear_errors()
    assert library.first_error() == "llama.cpp gave no reason"


def test_facts_of_the_embedded_target(target_path: Path) -> None:
    with Model(target_path, OPTIONS) as model:
        assert model.name == "tale-13m-q8_0"
        assert model.vocabulary.size == 8192
        assert model.trained_context == 2048
        assert not model.recurrent
        assert model.chat_template is not None
        assert "<|assistant|>" in model.chat_template
        assert model.metadata["general.architecture"] == "llama"


def test_text_survives_the_vocabulary(target_path: Path) -> None:
    with Model(target_path, OPTIONS) as model:
        vocabulary = model.vocabulary
        for text in ("Once upon a time.", "  two  spaces\n\ttab", "naïve – 日本語 🦊", ""):
            ids = vocabulary.tokenize(text, special=False, add_bos=False)
            assert b"".join(vocabulary.piece(token) for token in ids).decode() == text
        marker = vocabulary.tokenize("<|end|>", special=True, add_bos=False)
        assert len(marker) == 1
        assert vocabulary.ends(marker[0])
        assert vocabulary.piece(marker[0]) == b""
        assert vocabulary.special_text(marker[0]) == "<|end|>"
        assert len(vocabulary.tokenize("<|end|>", special=False, add_bos=False)) > 1
        assert vocabulary.tokenize("a", special=False, add_bos=True)[0] == vocabulary.bos


def test_lone_surrogates_become_question_marks(target_path: Path) -> None:
    with Model(target_path, OPTIONS) as model:
        ids = model.vocabulary.tokenize("a\ud800b", special=False, add_bos=False)
        assert b"".join(map(model.vocabulary.piece, ids)) == b"a?b"


def test_native_log_goes_to_logging_and_nowhere_else(
    target_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.DEBUG, "localspec.llama"), Model(target_path, OPTIONS) as model:
        Context(model, OPTIONS).close()
    assert any("tale-13m" in record.message for record in caplog.records)
    assert {record.name for record in caplog.records} == {"localspec.llama"}
    assert capfd.readouterr() == ("", "")


@pytest.mark.nightly
def test_native_log_is_taken_before_devices_are_asked_for() -> None:
    """A GPU's driver tells of itself then, long before a model is opened."""
    asks = "from localspec.llama import devices, ggml; devices.devices(); "
    complains = "ggml.libggml.ggml_backend_load(b'/nowhere/libggml-none.so')"
    told = subprocess.run(
        [sys.executable, "-c", asks + complains], capture_output=True, text=True, check=True
    )
    assert (told.stdout, told.stderr) == ("", "")
