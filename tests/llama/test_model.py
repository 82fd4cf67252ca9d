"""Opening files: what is no text model is refused in a sentence, before llama.cpp could abort."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from localspec import ModelInvalid, ModelNotFound, ModelOptions
from localspec.llama import library
from localspec.llama.context import Context
from localspec.llama.model import Model
from tests.gguf.raw import write_model
from tests.support import ggufs

OPTIONS = ModelOptions(context=64)


def bare(path: Path, **_: object) -> None:
    ggufs.tiny_llama(path, tokenizer=False)


def absurd(path: Path, sound: bytes) -> None:
    path.write_bytes(sound[:8] + (2**60).to_bytes(8, "little") + sound[16:])


def alien(path: Path, sound: bytes) -> None:
    at = sound.index(b"general.architecture") + len("general.architecture") + 4 + 8
    assert sound[at : at + 5] == b"llama"
    path.write_bytes(sound[:at] + b"alien" + sound[at + 5 :])


@pytest.mark.parametrize(
    ("make", "kind", "words"),
    [
        (lambda path, sound: None, ModelNotFound, "no file .* Check the path"),
        (lambda path, sound: path.mkdir(), ModelNotFound, "folder"),
        (lambda path, sound: path.touch(), ModelInvalid, "empty"),
        (
            lambda path, sound: path.write_bytes(b"\x10\0\0\0\0\0\0\0{}" * 40),
            ModelInvalid,
            "not a GGUF.*convert_hf_to_gguf.py",
        ),
        (lambda path, sound: path.write_bytes(sound[:12]), ModelInvalid, "ends in its header"),
        (absurd, ModelInvalid, "damaged"),
        (alien, ModelInvalid, "alien"),
        (bare, ModelInvalid, "no vocabulary"),
        (lambda path, sound: ggufs.tiny_bert(path), ModelInvalid, "embedding model .*bert"),
    ],
)
def test_what_is_no_text_model_is_refused(
    make: Callable[..., object],
    kind: type[Exception],
    words: str,
    tmp_path: Path,
    draft_path: Path,
) -> None:
    path = tmp_path / "model.gguf"
    make(path, sound=draft_path.read_bytes())
    with pytest.raises(kind, match=words) as caught:
        Model(path, OPTIONS)
    assert str(path) in str(caught.value)


def test_what_llama_cpp_says_is_one_printable_line(tmp_path: Path) -> None:
    """It may quote from the file, and names its functions."""
    path = write_model(tmp_path / "odd.gguf", architecture="one\ntwo\x1b[31m" + 2000 * "x")
    with pytest.raises(ModelInvalid) as caught:
        Model(path, OPTIONS)
    said = library.complaint()
    assert said.startswith("unknown model architecture: 'one two")
    assert said.isprintable()
    assert said in str(caught.value)
    assert len(said) <= 1000
    library.forget_complaints()
    assert library.complaint() == "llama.cpp gave no reason"


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
