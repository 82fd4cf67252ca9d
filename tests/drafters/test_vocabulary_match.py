"""The vocabularies of real models as bytes, and what two of them share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from localspec import DraftMismatch, ModelOptions
from localspec.drafters.byte_vocabulary import control
from localspec.drafters.vocabulary_map import VocabularyMap, match
from localspec.gguf.vocabularies import difference
from localspec.llama.model import Model
from localspec.llama.vocabulary import token_bytes
from tests.support import retokenised

OPTIONS = ModelOptions(context=64, threads=1)
TEXTS = [
    b"",
    b"The fox ran.",
    b" leading and  double spaces   ",
    b"no_space;x=1\n\n\tdef f(a):\n    return a\n",
    "Zoë — 你好, мир! 😀".encode(),
    "😀".encode()[:2],
    "ab😀".encode()[:4] + b" cd",
    b"\xff\xfe raw \xc3",
    b"<|user|> as text, </s> too",
]


@pytest.fixture(scope="module")
def target(target_path: Path) -> Iterator[Model]:
    with Model(target_path, OPTIONS) as model:
        yield model


@pytest.fixture(scope="module", params=["bpe", "spm", "bytes"])
def draft(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, draft_path: Path
) -> Iterator[Model]:
    path = tmp_path_factory.mktemp("vocabulary") / "draft.gguf"
    make = {
        "bpe": lambda: retokenised.permuted(path, draft_path, removed=0.5),
        "spm": lambda: retokenised.sentencepiece(path, draft_path),
        "bytes": lambda: retokenised.bytewise(path, draft_path),
    }
    with Model(make[request.param](), OPTIONS) as model:
        yield model


@pytest.fixture(scope="module")
def between(target: Model, draft: Model) -> VocabularyMap:
    return match(token_bytes(target.vocabulary), token_bytes(draft.vocabulary))


@pytest.mark.parametrize("text", TEXTS)
def test_both_spell_every_text(between: VocabularyMap, text: bytes) -> None:
    """SentencePiece puts a space before a text, which is none of it; half characters are bytes."""
    for vocabulary in (between.target, between.draft):
        pieces = vocabulary.encode(text)
        assert b"".join(vocabulary.spelled[token] for token, _ in pieces) == text
        assert [end for _, end in pieces][-1:] == ([len(text)] if text else [])


def test_text_is_written_as_the_model_writes_it(between: VocabularyMap, draft: Model) -> None:
    text = "Once upon a time, there was a little girl."
    written = [token for token, _ in between.draft.encode(text.encode())]
    own = draft.vocabulary.tokenize(text, special=False, add_bos=False)
    space = between.draft.spelled[own[0]].startswith(b" ")
    assert written[1:] == own[1:] if space else written == own


def test_control_tokens_meet_by_name_and_by_what_they_are_for(
    between: VocabularyMap, target: Model, draft: Model
) -> None:
    user = target.vocabulary.tokenize("<|user|>", special=True, add_bos=False)
    assert len(user) == 1
    assert between.target.spelled[user[0]] == control(b"<|user|>")
    named = draft.vocabulary.tokenize("<|user|>", special=True, add_bos=False)
    assert between.same[user[0]] == named[0]
    assert between.same[target.vocabulary.bos] == draft.vocabulary.bos
    turn = target.vocabulary.tokenize("<|end|>", special=True, add_bos=False)[0]
    assert draft.vocabulary.ends(int(between.same[turn]))


def test_control_token_that_the_draft_model_lacks_is_read_as_text(
    between: VocabularyMap, target: Model, draft: Model
) -> None:
    system = target.vocabulary.tokenize("<|system|>", special=True, add_bos=False)[0]
    if between.same[system] < 0:
        assert between.written(system) == b"<|system|>"
        plain = between.draft.encode(between.written(system))
        assert len(plain) > 1
    else:
        assert between.written(system) == control(b"<|system|>")


def test_shared_tokens_spell_the_same(between: VocabularyMap) -> None:
    for token, other in enumerate(between.same.tolist()):
        if other >= 0:
            assert between.target.spelled[token] == between.draft.spelled[other]
    assert 0.0 < between.shared <= 1.0


def test_draft_model_without_tokens_for_text_is_refused(
    target: Model, tmp_path: Path, draft_path: Path
) -> None:
    path = retokenised.bytewise(tmp_path / "digits.gguf", draft_path, kept="0123456789")
    with (
        Model(path, OPTIONS) as digits,
        pytest.raises(DraftMismatch, match=r"ordinary text.*--draft none"),
    ):
        match(token_bytes(target.vocabulary), token_bytes(digits.vocabulary))
    assert difference(target.path, path) is not None


def test_vocabulary_that_ends_early_is_another_one(
    target: Model, tmp_path: Path, draft_path: Path
) -> None:
    """The draft model would be given tokens that it does not have."""
    path = retokenised.bytewise(tmp_path / "bytes.gguf", draft_path)
    found = difference(target.path, path)
    assert found is not None
    assert (found.token, found.draft) == (261, "none")
